"""The file trace.json: timelines as trace events, for Perfetto and chrome://tracing."""

import json
import math
import os
from collections.abc import Iterable, Iterator
from io import TextIOWrapper
from pathlib import Path
from typing import Any

from dynapipe_hpc.data.errors import InputError, quoted
from dynapipe_hpc.data.input_file import open_input, why_unreadable
from dynapipe_hpc.data.replacing import replacing
from dynapipe_hpc.report.timeline import Bar, IterationTimeline, Kind
from dynapipe_hpc.report.work_shares import WorkShares

Event = dict[str, Any]  # the format is an open JSON object

MOST_LINE_BYTES = 1 << 28
LARGEST = 1 << 53
"""Largest number allowed in a trace: floats hold all integers up to it."""
ON_SECOND_TRACK = {Kind.TRANSFER, Kind.WAIT}
_ENCODER = json.JSONEncoder(separators=(",", ":"))


class TraceFile:
    """A JSON array that grows by one line per iteration.

    A rank appears as two processes, planned and measured, each with a track of computation and
    one of transfers and waits. The first line names the tracks. The format allows the closing
    bracket to be missing, so the file is usable at any time.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self._end_ms = 0.0

    def add(self, timeline: IterationTimeline) -> None:
        """Appends an iteration, which starts at the end of the one before."""
        with self.path.open("a", encoding="utf-8") as file:
            if not file.tell():
                file.write("[" + _line(_names(timeline.ranks)))
            file.write("," + _line(_events(timeline, self._end_ms)))
        self._end_ms += max(timeline.planned_ms, timeline.measured_ms)

    def close(self) -> None:
        """Closes the JSON array."""
        if self.path.exists():
            with self.path.open("a", encoding="utf-8") as file:
                file.write("]\n")

    def cut(self, n_kept: int) -> None:
        """Removes iterations from number `n_kept` on; later ones are appended after the rest.

        Raises:
            InputError: A line is damaged.
        """
        if not os.path.lexists(self.path):
            return
        with replacing(self.path) as beside:
            new = TraceFile(beside)
            for timeline in self.timelines():
                if timeline.iteration < n_kept:
                    new.add(timeline)
        self._end_ms = new._end_ms
        if not self._end_ms:
            self.path.unlink()

    def timelines(self) -> Iterator[IterationTimeline]:
        """All iterations, one by one, because runs of many ranks fill gigabytes.

        A last line still being written is left out; without a file there are none.

        Raises:
            InputError: A line is damaged.
        """
        if not os.path.lexists(self.path):
            return
        if reason := why_unreadable(self.path):
            raise InputError(f"{self.path}: cannot be read: {reason}")
        number = 0
        with TextIOWrapper(open_input(self.path), encoding="utf-8", errors="replace") as file:
            while line := file.readline(MOST_LINE_BYTES):
                number += 1
                is_complete = line.endswith("\n") or len(line) == MOST_LINE_BYTES
                if number > 1 and is_complete and line != "]\n":
                    yield self._timeline(line, number)

    def _timeline(self, line: str, number: int) -> IterationTimeline:
        try:
            text = f"[{line.removeprefix(',')}]"
            return _from_events(json.loads(text, parse_float=_finite, parse_constant=_finite))
        except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
            raise InputError(
                f"{self.path}:{number}: not an iteration of a trace ({error}); "
                "remove the line or the file"
            ) from error


def _finite(text: str) -> float:
    number = float(text)
    if not math.isfinite(number):
        raise ValueError(f"{text} is not a time")
    return number


def _line(events: list[Event]) -> str:
    return _ENCODER.encode(events)[1:-1] + "\n"


def _process(rank: int, *, measured: bool) -> int:
    """Process id from 1, in display order: rank by rank, planned above measured."""
    return 2 * rank + measured + 1


def _names(ranks: Iterable[int]) -> list[Event]:
    events = []
    for rank in ranks:
        for measured, what in ((False, "planned"), (True, "measured")):
            pid = _process(rank, measured=measured)
            events.append(_name("process_name", pid, 0, f"rank {rank} {what}"))
            events.append(_name("thread_name", pid, 2 * pid, "compute"))
            if measured:
                events.append(_name("thread_name", pid, 2 * pid + 1, "transfers and waits"))
    return events


def _name(what: str, pid: int, tid: int, name: str) -> Event:
    return {"name": what, "ph": "M", "pid": pid, "tid": tid, "args": {"name": name}}


def _events(timeline: IterationTimeline, offset_ms: float) -> list[Event]:
    """Events of an iteration: one per process that spans the iteration, then the bars."""
    events = []
    sides = (
        (False, timeline.planned_ms, timeline.planned),
        (True, timeline.measured_ms, timeline.measured),
    )
    for measured, end_ms, bars in sides:
        for rank in timeline.ranks:
            pid = _process(rank, measured=measured)
            span = _slice(f"iteration {timeline.iteration}", "iteration", pid, 2 * pid)
            span |= _times(offset_ms, 0.0, end_ms) | {"args": {"iteration": timeline.iteration}}
            events.append(span)
        events += [_of_bar(bar, offset_ms, measured=measured) for bar in bars]
    return events


def _of_bar(bar: Bar, offset_ms: float, *, measured: bool) -> Event:
    pid = _process(bar.rank, measured=measured)
    event = _slice(bar.label, bar.kind, pid, 2 * pid + (bar.kind in ON_SECOND_TRACK))
    event |= _times(offset_ms, bar.start_ms, bar.end_ms)
    if bar.shape is not None:
        rows, row_tokens = bar.shape
        event["args"] = {"microbatch": bar.microbatch, "rows": rows, "row_tokens": row_tokens}
        if bar.shares is not None:
            event["args"]["operations"] = bar.shares._asdict()
    return event


def _slice(name: str, category: str, pid: int, tid: int) -> Event:
    return {"name": name, "cat": category, "ph": "X", "pid": pid, "tid": tid}


def _times(offset_ms: float, start_ms: float, end_ms: float) -> Event:
    """Start and duration in µs with three decimals: viewers nest slices by integer nanoseconds."""
    start_ns = round((offset_ms + start_ms) * 1e6)
    end_ns = round((offset_ms + end_ms) * 1e6)
    return {"ts": start_ns / 1e3, "dur": (end_ns - start_ns) / 1e3}


def _from_events(events: list[Event]) -> IterationTimeline:
    span, *_ = (event for event in events if event["cat"] == "iteration")
    start_us = _time(span["ts"])
    bars = [event for event in events if event["cat"] != "iteration"]
    return IterationTimeline(
        iteration=_count(span["args"]["iteration"]),
        planned_ms=_time(span["dur"]) / 1e3,
        planned=tuple(_to_bar(event, start_us) for event in bars if _count(event["pid"]) % 2 == 1),
        measured=tuple(_to_bar(event, start_us) for event in bars if event["pid"] % 2 == 0),
    )


def _to_bar(event: Event, start_us: float) -> Bar:
    args = event.get("args")
    start_ms = (_time(event["ts"]) - start_us) / 1e3
    return Bar(
        rank=(_count(event["pid"]) - 1) // 2,
        kind=Kind(event["cat"]),
        label=_text(event["name"]),
        microbatch=_count(args["microbatch"]) if args else None,
        shape=(_count(args["rows"]), _count(args["row_tokens"])) if args else None,
        start_ms=start_ms,
        end_ms=start_ms + _time(event["dur"]) / 1e3,
        shares=_shares(args["operations"]) if args and "operations" in args else None,
    )


def _shares(values: dict[str, Any]) -> WorkShares:
    return WorkShares(*(_share(values[name]) for name in WorkShares._fields))


def _share(value: object) -> float:
    if not 0 <= (share := _time(value)) <= 1:
        raise ValueError(f"{quoted(value)} is not a share")
    return share


def _count(value: object) -> int:
    if type(value) is not int or not 0 <= value <= LARGEST:
        raise ValueError(f"{quoted(value)} is not a count")
    return value


def _time(value: object) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float) or abs(value) > LARGEST:
        raise ValueError(f"{quoted(value)} is not a time")
    return value


def _text(value: object) -> str:
    if not isinstance(value, str):
        raise TypeError(f"{quoted(value)} is not text")
    return value
