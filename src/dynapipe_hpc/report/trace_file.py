"""The file trace.json: timelines as trace events, for Perfetto and chrome://tracing."""

import json
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from dynapipe_hpc.report.timeline import Bar, BarKind, IterationTimeline

Event = dict[str, Any]  # the format is an open JSON object

MAX_BARS = 1 << 24
"""More bars than an iteration has: arrows of different iterations have different numbers."""
WITHIN_US = 0.001
"""Time before the end of a slice that still belongs to it, for viewers."""
TRACKS = {BarKind.TRANSFER: 1, BarKind.WAIT: 1}
"""Tracks of kinds that are not on the first of a rank."""
N_TRACKS = 2
_ENCODER = json.JSONEncoder(separators=(",", ":"))


class TraceFile:
    """A JSON array that grows by one line per iteration, and is never read by this package.

    A rank appears as two processes, planned and measured, each with a track of computation, one of
    transfers and waits, and a counter of the activations that it keeps. Arrows lead from sends to
    the receives that wait for them. The line of an iteration begins with the names of ranks that
    join in it. The format allows the closing bracket to be missing, so the file is usable at any
    time.
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
                self._named_ranks.clear()
            joined = [rank for rank in timeline.ranks if rank not in self._named_ranks]
            events = [*_names(joined), *_events(timeline, self._end_ms)]
            file.write(("[" if is_new else ",") + _ENCODER.encode(events)[1:-1] + "\n")
        self._named_ranks |= set(joined)
        self._end_ms += max(timeline.planned_ms, timeline.measured_ms)

    def restart(self, timelines: Iterable[IterationTimeline]) -> None:
        """Begins the file anew with these iterations; without any there is none."""
        self.path.unlink(missing_ok=True)
        for timeline in timelines:
            self.add(timeline)

    def close(self) -> None:
        if self.path.exists():
            with self.path.open("a", encoding="utf-8") as file:
                file.write("]\n")


def _process(rank: int, *, measured: bool) -> int:
    """Process id from 1, in display order: rank by rank, planned above measured."""
    return 2 * rank + measured + 1


def _track(pid: int, kind: BarKind = BarKind.FORWARD) -> int:
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
    return [*events, *_arrows(timeline, offset_ms)]


def _counter(bar: Bar, offset_ms: float, *, measured: bool) -> Iterator[Event]:
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
    return round(at_ms * 1e6) / 1e3
