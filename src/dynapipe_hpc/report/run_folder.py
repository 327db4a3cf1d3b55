"""The run folder: written while a run executes, read by the report."""

import json
import tomllib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict
from itertools import islice
from pathlib import Path
from typing import Any, Self

from pydantic import TypeAdapter, ValidationError

from dynapipe_hpc.data.atomic_write import atomic_write, remove_unfinished, unfinished, writing
from dynapipe_hpc.data.dataset.mixture import Mixture
from dynapipe_hpc.data.errors import InputError
from dynapipe_hpc.data.input_file import read_input, read_text, why_unreadable
from dynapipe_hpc.executor.run import IterationTrace
from dynapipe_hpc.plan.rank_plan import RankPlan, grid
from dynapipe_hpc.report.lines_file import LinesFile
from dynapipe_hpc.report.records import EvaluationRecord, IterationRecord
from dynapipe_hpc.report.timeline import Bar, BarKind, IterationTimeline, timeline_of
from dynapipe_hpc.report.work_shares import PassShares

Event = dict[str, Any]  # the format is an open JSON object

MAX_BARS = 1 << 24
"""More bars than any iteration has, so that arrows of different iterations differ in number."""
WITHIN_US = 0.001
"""Time in µs before the end of a slice at which viewers still assign an event to the slice."""
TRACKS = {BarKind.TRANSFER: 1, BarKind.WAIT: 1}
"""Tracks of the kinds of bars that are not on a rank's first track."""
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
        """Starts the file again with these iterations; without any, removes it."""
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
    """An arrow from the start of every transfer to the end of the receiver's wait for it.

    Rank 2's `a0<!` awaits `a0>2`, see `symbol`. Each rank measures from its own start of the
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


Fact = str | int | float
ITERATIONS = "iterations.jsonl"
MIXTURE = "mixture.json"
EVALUATIONS = "evaluations.jsonl"
TIMELINES = "timelines.jsonl"
TRACE = "trace.json"
ENDED = "ended.json"
LOCK = ".lock"
"""Name of the lock that a run holds while it writes; not part of the results."""
_WRITTEN = (
    "config.toml",
    "machine.json",
    MIXTURE,
    ITERATIONS,
    EVALUATIONS,
    TIMELINES,
    TRACE,
    ENDED,
    "*.reference",
)


class RunFolder:
    """A run on disk; docs/formats.md describes the files.

    Most files are replaced atomically; files of lines and trace.json grow by complete
    lines. So a run that dies leaves all of them readable.

    Attributes:
        path: The folder.
        config: Text of the resolved configuration (TOML).
        machine: Facts about the machine and the software.
    """

    def __init__(self, path: Path, config: str, machine: Mapping[str, Fact]) -> None:
        self.path = path
        self.config = config
        self.machine = machine
        self._iterations, self._evaluations = iterations_file(path), evaluations_file(path)
        self._timelines, self._trace = timelines_file(path), TraceFile(path / TRACE)

    @classmethod
    def create(
        cls, path: Path, config_toml: str, machine: Mapping[str, Fact], n_repeatable: int = 0
    ) -> Self:
        """Creates the folder of a new run.

        Args:
            path: The folder.
            config_toml: Text of the resolved configuration (TOML).
            machine: Facts about the machine and the software.
            n_repeatable: An earlier run in the folder may be replaced if it has at most this many
                iterations.

        Raises:
            InputError: The folder holds a longer run or other files, or cannot be created.
            RunError: The file system refuses, as when the disk is full.
        """
        _remove_unfinished(path)
        _prepare(path, n_repeatable)
        for name in (EVALUATIONS, TIMELINES, TRACE, ENDED):
            (path / name).unlink(missing_ok=True)
        _remove_plans(path, 0)
        folder = cls(path, config_toml, machine)
        # First, because it marks a run that failed early, whose folder may be used again.
        folder._iterations.begin()
        folder._write_facts()
        return folder

    @classmethod
    def resume(cls, path: Path, config_toml: str, machine: Mapping[str, Fact], n_done: int) -> Self:
        """Resumes the folder of a run; only its first `n_done` iterations count."""
        _remove_unfinished(path)
        folder = cls(path, config_toml, machine)
        folder._iterations.cut(n_done)
        folder._evaluations.cut(n_done + 1)
        folder._timelines.cut(n_done)
        with writing(path / TRACE):
            folder._trace.restart(folder._timelines.records())
        _remove_plans(path, n_done)
        with writing(path / ENDED):
            (path / ENDED).unlink(missing_ok=True)
        folder._write_facts()
        return folder

    @classmethod
    def open(cls, path: Path) -> Self:
        """Opens the folder of a run, finished or not.

        Raises:
            InputError: The folder is not a run folder, or has no finished iteration yet.
        """
        for name in ("config.toml", "machine.json", ITERATIONS):
            if reason := why_unreadable(path / name):
                raise not_a_run_error(path, f"{name}: {reason}")
        config, _ = _parsed(path / "config.toml", tomllib.loads, "TOML")
        _, machine = _parsed(path / "machine.json", json.loads, "JSON")
        if not isinstance(machine, dict):
            raise InputError(f"{path / 'machine.json'}: must hold a JSON object; restore a copy")
        folder = cls(path, config, machine)
        if next(folder.records(), None) is None:
            raise InputError(f"{path} holds no finished iteration; let the run finish one first")
        return folder

    @property
    def name(self) -> str:
        return self.path.resolve().name

    def add(self, record: IterationRecord) -> None:
        self._iterations.add(record)

    def add_evaluation(self, record: EvaluationRecord) -> None:
        self._evaluations.add(record)

    def add_trace(
        self,
        plans: Sequence[RankPlan],
        traces: Sequence[IterationTrace],
        shares: Sequence[Sequence[PassShares]] | None = None,
    ) -> None:
        """Writes an iteration's plans as text, and adds its timeline (see `timeline_of`)."""
        folder = self.path / "plans"
        with writing(folder):
            folder.mkdir(exist_ok=True)
        # Training does not wait for the disk.
        write_atomically(
            folder / f"{plans[0].iteration:04d}.txt", grid(plans) + "\n", lasting=False
        )
        timeline = timeline_of(plans, traces, shares)
        self._timelines.add(timeline)
        with writing(self._trace.path):
            self._trace.add(timeline)

    def close(self) -> None:
        """Closes the JSON array of trace.json."""
        with writing(self._trace.path):
            self._trace.close()

    def _write_facts(self) -> None:
        write_atomically(self.path / "config.toml", self.config)
        write_atomically(
            self.path / "machine.json", json.dumps(dict(self.machine), indent=2) + "\n"
        )

    def records(self) -> Iterator[IterationRecord]:
        """All iterations so far, one by one, except one whose line is still being written."""
        return self._iterations.records()

    def evaluations(self) -> list[EvaluationRecord]:
        """All evaluations so far; an empty list if the run made none."""
        return list(self._evaluations.records())

    def timelines(self) -> list[IterationTimeline]:
        """The traced iterations; an empty list if the run traced none."""
        return list(self._timelines.records())


def iterations_file(folder: Path) -> LinesFile[IterationRecord]:
    return LinesFile(folder / ITERATIONS, IterationRecord, "iteration")


def timelines_file(folder: Path) -> LinesFile[IterationTimeline]:
    """The traced iterations of a run folder; lines are long where there are many ranks."""
    return LinesFile(folder / TIMELINES, IterationTimeline, "iteration", 1 << 28)


def evaluations_file(folder: Path) -> LinesFile[EvaluationRecord]:
    """The evaluations of a run folder; a run without any has no file."""
    return LinesFile(folder / EVALUATIONS, EvaluationRecord, "n_done")


def write_atomically(path: Path, text: str, *, lasting: bool = True) -> None:
    with atomic_write(path, lasting=lasting) as temporary:
        temporary.write_text(text, encoding="utf-8")


def _remove_unfinished(path: Path) -> None:
    """Removes temporary files that a killed run has left, but not those of a report."""
    remove_unfinished(path, *_WRITTEN)
    remove_unfinished(path / "plans", "*")


def _remove_plans(path: Path, n_kept: int) -> None:
    for text in (path / "plans").glob("*.txt"):
        if text.stem.isdecimal() and int(text.stem) >= n_kept:
            with writing(text):
                text.unlink()


def _prepare(path: Path, n_repeatable: int) -> None:
    try:
        path.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise InputError(
            f"{path}: cannot be written: {error.strerror}; choose another folder"
        ) from None
    try:
        is_run = (path / ITERATIONS).exists()
        n_done = iterations_file(path).n_lines()
        left = unfinished(path, *_WRITTEN)
        others = [p for p in path.iterdir() if not p.name.startswith(LOCK) and p not in left]
        others = [p for p in others if p.suffix != ".reference"]  # may be copied from another run
    except OSError as error:
        raise InputError(f"{path}: cannot be read: {error.strerror}; name another") from None
    if n_done > n_repeatable:
        raise InputError(
            f"{path} already holds a run of {n_done} iterations without a checkpoint to "
            "resume from; name another folder or remove this one"
        )
    if others and not is_run:
        raise InputError(f"{path} holds files that no run wrote; name a new folder")


def _parsed(path: Path, parse: Callable[[str], object], kind: str) -> tuple[str, object]:
    text = read_text(path)
    try:
        return text, parse(text)
    except (ValueError, RecursionError) as error:
        raise InputError(f"{path}: not {kind}: {error}") from error


def write_mixture(folder: Path, mixture: Mixture | None) -> None:
    """Writes the mixture of a run; without one, removes what an earlier start has left."""
    path = folder / MIXTURE
    if mixture is None:
        path.unlink(missing_ok=True)
        return
    with atomic_write(path) as temporary:
        temporary.write_text(json.dumps(asdict(mixture), indent=2) + "\n", encoding="utf-8")


def read_mixture(folder: Path) -> Mixture | None:
    """Reads the mixture of a run; None if it trains on a single dataset."""
    path = folder / MIXTURE
    if not path.exists():
        return None
    try:
        return TypeAdapter(Mixture).validate_json(read_input(path))
    except ValidationError as error:
        detail = error.errors()[0]
        where = ".".join(map(str, detail["loc"])) or "content"
        raise InputError(
            f"{path}: {where}: {detail['msg']}; restore it from a copy, or remove it if an "
            "earlier version wrote it"
        ) from None


_MAX_NAMED = 5
_OF_A_RUN = "machine.json"
"""A file that every run writes, and nothing else."""
_MODEL = "a model of Hugging Face; to see what it writes: dynapipe-hpc generate"
_KINDS = {
    "checkpoint.json": "a checkpoint; name the folder of its run",
    "model.safetensors": _MODEL,
    "config.json": _MODEL,
    "adapter_config.json": "adapters for peft; name the folder of the run that trained them",
    "tokenizer.json": "a tokenizer of Hugging Face; name the folder of a run",
    "config.toml": "a configuration, but no run has begun here: dynapipe-hpc run",
}
"""Kinds of folders by a file of each, the most telling first."""


def not_a_run_error(path: Path, reason: str) -> InputError:
    """The error that a path is not a run folder; `reason` names the file that it lacks."""
    try:
        kind = _kind(path)
    except OSError as error:
        kind = f"cannot be read: {error.strerror}; name the folder of a run"
    return InputError(f"{path} is not a run folder ({reason}): {kind}")


def _kind(path: Path) -> str:
    if not path.exists():
        return "it does not exist; name the folder of a run"
    if path.is_file():
        return "it is a file; to see what a dataset or a cost table holds: dynapipe-hpc inspect"
    runs = [each for each in (path.parent, path.parent.parent) if (each / _OF_A_RUN).exists()]
    if runs:
        return f"it is part of a run; name {runs[0]}"
    for name, kind in _KINDS.items():
        if (path / name).exists():
            return f"it is {kind}"
    runs = sorted(each.parent for each in path.glob(f"*/{_OF_A_RUN}"))
    if runs:
        more = f", ... ({len(runs)})" if len(runs) > _MAX_NAMED else ""
        return f"it holds runs; name one: {', '.join(map(str, islice(runs, _MAX_NAMED)))}{more}"
    if next(path.glob("*.h5"), None):
        return "it holds datasets or cost tables; to see one: dynapipe-hpc inspect FILE.h5"
    if next(path.iterdir(), None) is None:
        return "it is empty; name the folder of a run"
    return "it holds no file of a run; name the folder of one"
