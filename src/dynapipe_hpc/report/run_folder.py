"""The folder that a run leaves behind: written while it runs, read by the report."""

import csv
import json
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import astuple, dataclass, fields
from pathlib import Path
from typing import Any, Self

from dynapipe_hpc.data.errors import InputError
from dynapipe_hpc.executor.trace import IterationTrace
from dynapipe_hpc.plan.rank_plan import RankPlan
from dynapipe_hpc.plan.text import grid
from dynapipe_hpc.report.timeline import IterationTimeline, timeline_of
from dynapipe_hpc.report.trace_file import TraceFile

Fact = str | int | float


@dataclass(frozen=True, slots=True)
class IterationRecord:
    """One line of iterations.csv: an iteration as seen over all ranks.

    Attributes:
        iteration: Number of the iteration, from 0.
        loss: Of the whole global batch.
        gradient_norm: Over all stages, before clipping.
        learning_rate: Of the iteration's step.
        n_samples: Samples of the global batch.
        n_microbatches: Micro-batches over all replicas.
        real_tokens: Tokens of the samples.
        padded_tokens: Tokens computed, padding included.
        predicted_ms: The planner's time of the iteration.
        measured_ms: Time of the iteration, waiting for plans included, on the slowest rank.
        predicted_peak_bytes: The planner's peak memory of activations, largest over ranks.
        measured_peak_bytes: Measured peak memory of activations, largest over ranks.
        planning_ms: Time that one core spent planning this iteration.
        waited_ms: Longest time that a rank waited for its plan.
        plans_ahead: Plans that were ready beyond this one when it was taken.
    """

    iteration: int
    loss: float
    gradient_norm: float
    learning_rate: float
    n_samples: int
    n_microbatches: int
    real_tokens: int
    padded_tokens: int
    predicted_ms: float
    measured_ms: float
    predicted_peak_bytes: int
    measured_peak_bytes: int
    planning_ms: float
    waited_ms: float
    plans_ahead: int


COLUMNS = tuple(field.name for field in fields(IterationRecord))
INTEGERS = {field.name for field in fields(IterationRecord) if field.type is int}


class RunFolder:
    """A run on disk; docs/formats.md describes the files.

    Whole files are written beside and renamed; iterations.csv and trace.json grow by whole
    lines, so that a run that dies leaves both readable.

    Attributes:
        path: The folder.
        config: Text of the resolved configuration (TOML).
        machine: Facts about the machine and the software.
    """

    def __init__(self, path: Path, config: str, machine: Mapping[str, Fact]) -> None:
        self.path = path
        self.config = config
        self.machine = machine
        self._trace = TraceFile(path / "trace.json")

    @classmethod
    def create(cls, path: Path, config_toml: str, machine: Mapping[str, Fact]) -> Self:
        """Starts the folder of a new run.

        Raises:
            InputError: The folder holds a run already.
        """
        if (path / "iterations.csv").exists():
            raise InputError(f"{path} already holds a run; name another folder or remove this one")
        path.mkdir(parents=True, exist_ok=True)
        write_whole(path / "config.toml", config_toml)
        write_whole(path / "machine.json", json.dumps(dict(machine), indent=2) + "\n")
        write_whole(path / "iterations.csv", ",".join(COLUMNS) + "\n")
        return cls(path, config_toml, machine)

    @classmethod
    def open(cls, path: Path) -> Self:
        """Opens the folder of a run, ended or not.

        Raises:
            InputError: The folder is no run folder, has no iteration yet, or is damaged.
        """
        for name in ("config.toml", "machine.json", "iterations.csv"):
            if not (path / name).is_file():
                raise InputError(
                    f"{path} is not a run folder (no {name}); name one that a run wrote"
                )
        config = _read_config(path / "config.toml")
        folder = cls(path, config, _read_machine(path / "machine.json"))
        if not folder.records():
            raise InputError(f"{path} holds no finished iteration; let the run finish one first")
        return folder

    @property
    def name(self) -> str:
        """The folder's name."""
        return self.path.resolve().name

    def add(self, record: IterationRecord) -> None:
        """Appends an iteration to iterations.csv."""
        line = ",".join(repr(value) for value in astuple(record))
        with (self.path / "iterations.csv").open("a", encoding="utf-8") as file:
            file.write(line + "\n")

    def add_trace(self, plans: Sequence[RankPlan], traces: Sequence[IterationTrace]) -> None:
        """Writes an iteration's plans as text and adds its timelines to trace.json.

        Args:
            plans: Of all ranks, for one iteration.
            traces: Of the same ranks in the same order.
        """
        (self.path / "plans").mkdir(exist_ok=True)
        text = self.path / "plans" / f"{plans[0].iteration:04d}.txt"
        write_whole(text, grid(plans) + "\n")
        self._trace.add(timeline_of(plans, traces))

    def close(self) -> None:
        """Ends trace.json, so that it is one JSON array."""
        self._trace.close()

    def records(self) -> list[IterationRecord]:
        """All iterations so far; a last line still being written is left out.

        Raises:
            InputError: A line is damaged.
        """
        file = self.path / "iterations.csv"
        lines = file.read_text(encoding="utf-8", errors="replace").splitlines(keepends=True)
        whole = [line for line in lines if line.endswith("\n")]
        if not whole or whole[0].strip() != ",".join(COLUMNS):
            raise InputError(f"{file}:1: the columns must be {','.join(COLUMNS)}")
        rows = enumerate(csv.reader(whole[1:]), start=2)
        return [_record(row, f"{file}:{number}") for number, row in rows]

    def timelines(self) -> list[IterationTimeline]:
        """The iterations of trace.json; none if the run wrote no trace.

        Raises:
            InputError: trace.json is damaged.
        """
        return self._trace.timelines()


def write_whole(path: Path, text: str) -> None:
    """Writes a file beside its place and renames it, so that nobody sees half of it."""
    beside = path.with_name(path.name + ".part")
    beside.write_text(text, encoding="utf-8")
    beside.replace(path)


def _record(row: Sequence[str], place: str) -> IterationRecord:
    if len(row) != len(COLUMNS):
        raise InputError(f"{place}: {len(row)} values where {len(COLUMNS)} belong; remove the line")
    values: dict[str, Any] = {
        column: _value(column, cell, place) for column, cell in zip(COLUMNS, row, strict=True)
    }
    for column in ("real_tokens", "padded_tokens", "measured_ms"):
        if not values[column] > 0:
            raise InputError(f"{place}: {column} is {values[column]}, not > 0; remove the line")
    return IterationRecord(**values)


def _value(column: str, cell: str, place: str) -> int | float:
    try:
        return int(cell) if column in INTEGERS else float(cell)
    except ValueError as error:
        kind = "a whole number" if column in INTEGERS else "a number"
        raise InputError(f"{place}: {column} is '{cell}', not {kind}; remove the line") from error


def _read_config(path: Path) -> str:
    text = path.read_text(encoding="utf-8")
    try:
        tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise InputError(f"{path}: not TOML: {error}") from error
    return text


def _read_machine(path: Path) -> dict[str, Fact]:
    try:
        machine = json.loads(path.read_text(encoding="utf-8"))
    except ValueError as error:
        raise InputError(f"{path}: not JSON: {error}") from error
    if not isinstance(machine, dict):
        raise InputError(f"{path}: must hold an object of names and values")
    return machine
