"""The folder that a run leaves behind: written while it runs, read by the report."""

import json
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import astuple
from pathlib import Path
from typing import Self

from dynapipe_hpc.data.errors import InputError
from dynapipe_hpc.data.input_file import read_input, read_text, why_unreadable
from dynapipe_hpc.data.replacing import replacing, writing
from dynapipe_hpc.executor.trace import IterationTrace
from dynapipe_hpc.plan.rank_plan import RankPlan
from dynapipe_hpc.plan.text import grid
from dynapipe_hpc.report.iteration_record import COLUMNS, IterationRecord, parse_line
from dynapipe_hpc.report.timeline import IterationTimeline, timeline_of
from dynapipe_hpc.report.trace_file import TraceFile

Fact = str | int | float
TRACE = "trace.json"
LOCK = ".lock"
"""Name of the lock that a run holds while it writes; no part of the run."""


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
        self._trace = TraceFile(path / TRACE)

    @classmethod
    def create(
        cls, path: Path, config_toml: str, machine: Mapping[str, Fact], n_repeatable: int = 0
    ) -> Self:
        """Starts the folder of a new run.

        Args:
            path: The folder.
            config_toml: See `config`.
            machine: See `machine`.
            n_repeatable: A run that was there before may have done fewer iterations than these.

        Raises:
            InputError: The folder holds more of a run, or other files, or cannot be made.
            RunError: The file system refuses, as when the disk is full.
        """
        _prepare(path, n_repeatable)
        (path / TRACE).unlink(missing_ok=True)
        # First, because it tells a run that failed early, whose folder may be used again.
        write_whole(path / "iterations.csv", ",".join(COLUMNS) + "\n")
        folder = cls(path, config_toml, machine)
        folder._write_facts()
        return folder

    @classmethod
    def resume(cls, path: Path, config_toml: str, machine: Mapping[str, Fact], n_done: int) -> Self:
        """Goes on with the folder of a run, of which the first `n_done` iterations count.

        Raises:
            InputError: The folder is no run folder, or damaged.
            RunError: The file system refuses, as when the disk is full.
        """
        folder = cls(path, config_toml, machine)
        kept = [record for record in folder.records() if record.iteration < n_done]
        lines = [",".join(COLUMNS), *map(_line, kept)]
        write_whole(path / "iterations.csv", "".join(f"{line}\n" for line in lines))
        folder._trace.cut(n_done)
        folder._write_facts()
        return folder

    @classmethod
    def open(cls, path: Path) -> Self:
        """Opens the folder of a run, ended or not.

        Raises:
            InputError: The folder is no run folder, has no iteration yet, or is damaged.
        """
        for name in ("config.toml", "machine.json", "iterations.csv"):
            if reason := why_unreadable(path / name):
                raise InputError(
                    f"{path} is not a run folder ({name}: {reason}); name one that a run wrote"
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
        """Appends an iteration to iterations.csv.

        Raises:
            RunError: The file system refuses, as when the disk is full.
        """
        file = self.path / "iterations.csv"
        with writing(file), file.open("a", encoding="utf-8") as lines:
            lines.write(_line(record) + "\n")

    def add_trace(self, plans: Sequence[RankPlan], traces: Sequence[IterationTrace]) -> None:
        """Writes an iteration's plans as text and adds its timelines to trace.json.

        Args:
            plans: Of all ranks, for one iteration.
            traces: Of the same ranks in the same order.
        """
        folder = self.path / "plans"
        with writing(folder):
            folder.mkdir(exist_ok=True)
        write_whole(folder / f"{plans[0].iteration:04d}.txt", grid(plans) + "\n")
        with writing(self._trace.path):
            self._trace.add(timeline_of(plans, traces))

    def close(self) -> None:
        """Ends trace.json, so that it is one JSON array."""
        with writing(self._trace.path):
            self._trace.close()

    def _write_facts(self) -> None:
        write_whole(self.path / "config.toml", self.config)
        write_whole(self.path / "machine.json", json.dumps(dict(self.machine), indent=2) + "\n")

    def records(self) -> list[IterationRecord]:
        """All iterations so far; a last line still being written is left out.

        Raises:
            InputError: A line is damaged.
        """
        file = self.path / "iterations.csv"
        lines = read_input(file).decode(errors="replace").splitlines(keepends=True)
        whole = [line for line in lines if line.endswith("\n")]
        if not whole or whole[0].strip() != ",".join(COLUMNS):
            raise InputError(f"{file}:1: the columns must be {','.join(COLUMNS)}")
        return [parse_line(line, f"{file}:{n}") for n, line in enumerate(whole[1:], start=2)]

    def timelines(self) -> list[IterationTimeline]:
        """The iterations of trace.json; none if the run wrote no trace.

        Raises:
            InputError: trace.json is damaged.
        """
        return self._trace.timelines()


def _line(record: IterationRecord) -> str:
    return ",".join(repr(value) for value in astuple(record))


def write_whole(path: Path, text: str) -> None:
    """Writes a file beside its place and renames it, so that nobody sees half of it."""
    with replacing(path) as beside:
        beside.write_text(text, encoding="utf-8")


def _prepare(path: Path, n_repeatable: int) -> None:
    """Makes an empty folder, or takes one whose run finished no iteration, or few."""
    try:
        path.mkdir(parents=True, exist_ok=True)
        lines = path / "iterations.csv"
        if lines.exists():
            # An unfinished line does not end.
            n_done = lines.read_bytes().count(b"\n") - 1
            if n_done and n_done >= n_repeatable:
                raise InputError(
                    f"{path} already holds a run, of {n_done} iterations, and no checkpoint to go "
                    "on from; name another folder or remove this one"
                )
        elif any(not each.name.startswith(LOCK) for each in path.iterdir()):
            raise InputError(f"{path} holds files of something else; name a new folder")
    except OSError as error:
        raise InputError(
            f"{path}: cannot be written: {error.strerror}; choose another folder"
        ) from None


def _read_config(path: Path) -> str:
    try:
        text = read_text(path)
        tomllib.loads(text)
    except InputError:
        raise
    except (ValueError, RecursionError) as error:
        raise InputError(f"{path}: not TOML: {error}") from error
    return text


def _read_machine(path: Path) -> dict[str, Fact]:
    try:
        machine = json.loads(read_input(path))
    except InputError:
        raise
    except (ValueError, RecursionError) as error:
        raise InputError(f"{path}: not JSON: {error}") from error
    if not isinstance(machine, dict):
        raise InputError(f"{path}: must hold an object of names and values")
    return machine
