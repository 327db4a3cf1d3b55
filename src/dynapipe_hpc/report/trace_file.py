"""The file trace.json: timelines as trace events, for Perfetto and chrome://tracing."""

import json
import math
import os
from collections.abc import Iterable, Iterator
from io import TextIOWrapper
from pathlib import Path
from typing import Any

from dynapipe_hpc.data.atomic_write import atomic_write
from dynapipe_hpc.data.errors import InputError, quoted
from dynapipe_hpc.data.input_file import open_input, why_unreadable
from dynapipe_hpc.report.lines_file import last_lines
from dynapipe_hpc.report.timeline import Bar, BarKind, IterationTimeline
from dynapipe_hpc.report.work_shares import WorkShares

Event = dict[str, Any]  # the format is an open JSON object

MAX_LINE_BYTES = 1 << 28
MAX_LAST_BYTES = 1 << 24
"""Longest last iteration that is looked at while a run executes."""
LARGEST = 1 << 53
"""Largest number allowed in a trace: floats hold all integers up to it."""
MAX_BARS = 1 << 24
"""More bars than an iteration has: arrows of different iterations have different numbers."""
WITHIN_US = 0.001
"""Time before the end of a slice that still belongs to it, for viewers."""
TRACKS = {BarKind.TRANSFER: 1, BarKind.WAIT: 1, BarKind.PLAN: 2}
"""Tracks of kinds that are not on the first of a rank."""
N_TRACKS = 3
_ENCODER = json.JSONEncoder(separators=(",", ":"))


class TraceFile:
    """A JSON array that grows by one line per iteration.

    A rank appears as two processes, planned and measured, each with a track of computation, one
    of transfers and waits, one of its planner, and a counter of the activations that it keeps.
    Arrows lead from sends to the receives that wait for them. The first line names the tracks,
    and that of an iteration those of ranks that join in it. The format allows the closing bracket
    to be missing, so the file is usable at any time.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self._end_ms = 0.0
        self._named_ranks = set[int]()

    def add(self, timeline: IterationTimeline) -> None:
        """Appends an iteration, which starts at the end of the one before."""
        with self.path.open("a", encoding="utf-8") as file:
            is_new = not file.tell()
            if is_new:
                file.write("[" + _line(_names(timeline.ranks)))
            joined = [] if is_new else [r for r in timeline.ranks if r not in self._named_ranks]
            names = _names(joined)
            file.write("," + _line([*_events(timeline, self._end_ms), *names]))
        self._named_ranks |= set(timeline.ranks)
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
        with atomic_write(self.path) as temporary:
            new = TraceFile(temporary)
            for timeline in self.timelines():
                if timeline.iteration < n_kept:
                    new.add(timeline)
        self._end_ms, self._named_ranks = new._end_ms, new._named_ranks
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
            while line := file.readline(MAX_LINE_BYTES):
                number += 1
                is_complete = line.endswith("\n") or len(line) == MAX_LINE_BYTES
                if number > 1 and is_complete and line != "]\n":
                    yield self._timeline(line, number)

    def last(self) -> IterationTimeline | None:
        """The last complete iteration, from the end of the file; None if there is none.

        Raises:
            InputError: The line is damaged.
        """
        lines = [line for line in last_lines(self.path, MAX_LAST_BYTES) if line.startswith(",")]
        return self._timeline(lines[-1], -1) if lines else None

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


def _track(pid: int, kind: BarKind = BarKind.FORWARD) -> int:
    """Thread id, which no other process has."""
    return N_TRACKS * pid + TRACKS.get(kind, 0)


def _names(ranks: Iterable[int]) -> list[Event]:
    events = []
    for rank in ranks:
        for measured, what in ((False, "planned"), (True, "measured")):
            pid = _process(rank, measured=measured)
            events.append(_name("process_name", pid, 0, f"rank {rank} {what}"))
            order = {"name": "process_sort_index", "ph": "M", "pid": pid}
            events.append(order | {"args": {"sort_index": pid}})
            events.append(_name("thread_name", pid, _track(pid), "compute"))
            if measured:
                other = _track(pid, BarKind.TRANSFER)
                events.append(_name("thread_name", pid, other, "transfers and waits"))
                events.append(_name("thread_name", pid, _track(pid, BarKind.PLAN), "planner"))
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
            span = _slice(f"iteration {timeline.iteration}", "iteration", pid, _track(pid))
            span |= _times(offset_ms, 0.0, end_ms) | {"args": {"iteration": timeline.iteration}}
            events.append(span)
        for bar in bars:
            events.append(_of_bar(bar, offset_ms, measured=measured))
            events += _counter(bar, offset_ms, measured=measured)
    events += (_of_bar(bar, offset_ms, measured=True) for bar in timeline.planning)
    return [*events, *_arrows(timeline, offset_ms)]


def _counter(bar: Bar, offset_ms: float, *, measured: bool) -> Iterator[Event]:
    """The activations that a rank keeps from now on."""
    if bar.kept_bytes is not None:
        at_ms = bar.start_ms if bar.kind is BarKind.FORWARD else bar.end_ms
        pid, kept = _process(bar.rank, measured=measured), {"bytes": bar.kept_bytes}
        named = {"name": "activations", "cat": "memory", "ph": "C", "pid": pid}
        yield named | {"ts": _us(offset_ms + at_ms), "args": kept}


def _arrows(timeline: IterationTimeline, offset_ms: float) -> Iterator[Event]:
    """An arrow from the start of every transfer to where the receiver has waited for it.

    Rank 2 waits for what `a0>2` sends by `a0<!`. Each rank measures from its own start of the
    iteration, so that a receive may seem to end before the send; such an arrow is left out.
    """
    waits = {(bar.rank, bar.label): bar for bar in timeline.measured if bar.kind is BarKind.WAIT}
    for number, send in enumerate(timeline.measured, start=timeline.iteration * MAX_BARS):
        what, _, receiver = send.label.partition(">")
        if send.kind is not BarKind.TRANSFER or not receiver:
            continue
        wait = waits.get((int(receiver), f"{what}<!"))
        if wait is not None and send.start_ms < wait.end_ms:
            yield _arrow("s", send.rank, number, _us(offset_ms + send.start_ms))
            yield _arrow("f", wait.rank, number, _us(offset_ms + wait.end_ms) - WITHIN_US)


def _arrow(phase: str, rank: int, number: int, at_us: float) -> Event:
    """Begin or end of an arrow, in the slice of the second track that is there."""
    pid = _process(rank, measured=True)
    event = {"name": "transfer", "cat": "arrow", "ph": phase, "id": number, "bp": "e"}
    return event | {"pid": pid, "tid": _track(pid, BarKind.TRANSFER), "ts": round(at_us, 3)}


def _of_bar(bar: Bar, offset_ms: float, *, measured: bool) -> Event:
    pid = _process(bar.rank, measured=measured)
    event = _slice(bar.label, bar.kind, pid, _track(pid, bar.kind))
    event |= _times(offset_ms, bar.start_ms, bar.end_ms)
    if bar.shape is not None:
        rows, row_tokens = bar.shape
        event["args"] = {"microbatch": bar.microbatch, "rows": rows, "row_tokens": row_tokens}
        if bar.kept_bytes is not None:
            event["args"]["kept_bytes"] = bar.kept_bytes
        if bar.shares is not None:
            event["args"]["operations"] = bar.shares._asdict()
    return event


def _slice(name: str, category: str, pid: int, tid: int) -> Event:
    return {"name": name, "cat": category, "ph": "X", "pid": pid, "tid": tid}


def _times(offset_ms: float, start_ms: float, end_ms: float) -> Event:
    """Start and duration in µs with three decimals: viewers nest slices by integer nanoseconds."""
    start_us, end_us = _us(offset_ms + start_ms), _us(offset_ms + end_ms)
    return {"ts": start_us, "dur": round(end_us - start_us, 3)}


def _us(at_ms: float) -> float:
    """Microseconds with three decimals."""
    return round(at_ms * 1e6) / 1e3


def _from_events(events: list[Event]) -> IterationTimeline:
    events = [event for event in events if event["ph"] != "M"]
    span, *_ = (event for event in events if event["cat"] == "iteration")
    start_us = _time(span["ts"])
    slices = [event for event in events if event["ph"] == "X" and event["cat"] != "iteration"]
    bars = [event for event in slices if event["cat"] != BarKind.PLAN]
    return IterationTimeline(
        iteration=_count(span["args"]["iteration"]),
        planned_ms=_time(span["dur"]) / 1e3,
        planned=tuple(_to_bar(event, start_us) for event in bars if _count(event["pid"]) % 2 == 1),
        measured=tuple(_to_bar(event, start_us) for event in bars if event["pid"] % 2 == 0),
        planning=tuple(
            _to_bar(event, start_us) for event in slices if event["cat"] == BarKind.PLAN
        ),
    )


def _to_bar(event: Event, start_us: float) -> Bar:
    args = event.get("args")
    start_ms = (_time(event["ts"]) - start_us) / 1e3
    return Bar(
        rank=(_count(event["pid"]) - 1) // 2,
        kind=BarKind(event["cat"]),
        label=_text(event["name"]),
        microbatch=_count(args["microbatch"]) if args else None,
        shape=(_count(args["rows"]), _count(args["row_tokens"])) if args else None,
        start_ms=start_ms,
        end_ms=start_ms + _time(event["dur"]) / 1e3,
        shares=_shares(args["operations"]) if args and "operations" in args else None,
        kept_bytes=_count(args["kept_bytes"]) if args and "kept_bytes" in args else None,
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
