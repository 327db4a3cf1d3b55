"""The folder of a simulation: written while iterations are planned, read for its table."""

import json
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from pydantic.dataclasses import dataclass

from dynapipe_hpc.data.atomic_write import remove_unfinished, writing
from dynapipe_hpc.data.errors import InputError, quoted
from dynapipe_hpc.data.input_file import read_text
from dynapipe_hpc.report.lines_file import JsonLines
from dynapipe_hpc.report.planned_iteration import PlannedIteration
from dynapipe_hpc.report.run_folder import write_atomically

CONFIG, INPUTS = "config.toml", "inputs.json"
PLANNED, PLANNING = "planned.jsonl", "planning.jsonl"
_PARTS = "parts"


@dataclass(frozen=True, slots=True)
class Planned:
    """A planned iteration, and how long planning took.

    Attributes:
        record: Predicted numbers, the same on every machine.
        planning_ms: Measured processor time from lengths to the checked bytes of all plans.
    """

    record: PlannedIteration
    planning_ms: float


@dataclass(frozen=True, slots=True)
class PlanningTime:
    """Measured time of planning an iteration: one line of planning.jsonl.

    Attributes:
        method: Name of the method.
        iteration: Number of the iteration, from 0.
        planning_ms: See `Planned`.
    """

    method: str
    iteration: int
    planning_ms: float


_RECORDS, _TIMES, _PART = JsonLines(PlannedIteration), JsonLines(PlanningTime), JsonLines(Planned)


class SimulationFolder:
    """A simulation on disk; docs/formats.md describes the files.

    Ranks add complete lines to parts of their own, which become two files at the end. So a
    simulation that is killed loses no iteration whose line is complete.

    Attributes:
        path: The folder.
    """

    def __init__(self, path: Path) -> None:
        """Opens nothing yet."""
        self.path = path

    def begin(self, config_toml: str, inputs: Mapping[str, str]) -> None:
        """Creates the folder, or checks that it holds a part of this simulation.

        Args:
            config_toml: Text of the configuration, which the folder keeps.
            inputs: Checksums of what else decides the results, by its name.

        Raises:
            InputError: It holds another simulation or other files, or cannot be written.
            RunError: The file system refuses, as when the disk is full.
        """
        config = self.path / CONFIG
        try:
            self.path.mkdir(parents=True, exist_ok=True)
            others = {each.name for each in self.path.iterdir() if each.name[0] != "."}
        except OSError as error:
            raise InputError(
                f"{self.path}: cannot be written: {error.strerror}; choose another folder"
            ) from None
        if others and not others <= {CONFIG, INPUTS, PLANNED, PLANNING, _PARTS}:
            raise InputError(f"{self.path} holds files that no simulation wrote; name a new folder")
        if CONFIG in others and read_text(config) != config_toml:
            raise InputError(
                f"{self.path} holds a simulation of another configuration (its {CONFIG}); name "
                "another folder, or remove this one"
            )
        if INPUTS in others:
            self._check_inputs(inputs)
        remove_unfinished(self.path, CONFIG, INPUTS, PLANNED, PLANNING)
        if INPUTS not in others:
            write_atomically(self.path / INPUTS, json.dumps(inputs, indent=1) + "\n")
        if CONFIG not in others:
            write_atomically(config, config_toml)

    @property
    def is_finished(self) -> bool:
        """Whether a simulation ended here, after which only its files are read."""
        return (self.path / PLANNED).exists() and not (self.path / _PARTS).exists()

    def planned(self) -> dict[tuple[str, int], Planned]:
        """The iterations that are planned, by method and number.

        Raises:
            InputError: A file is damaged; names file and line.
        """
        planned = list(self._finished()) if (self.path / PLANNED).exists() else []
        for part in sorted((self.path / _PARTS).glob("*.jsonl")):
            planned += (each for _, each in _PART.read(part))
        return {each.record.key: each for each in planned}

    def add(self, rank: int, planned: Planned) -> None:
        """Adds an iteration to the part of a rank.

        Raises:
            RunError: The file system refuses, as when the disk is full.
        """
        path = self._part(rank)
        with writing(path), path.open("a", encoding="utf-8") as part:
            part.write(_PART.line(planned))

    def gather(self, planned: Sequence[Planned]) -> None:
        """Writes planned iterations into one part in place of all others.

        Raises:
            RunError: The file system refuses, as when the disk is full.
        """
        with writing(self.path / _PARTS):
            (self.path / _PARTS).mkdir(exist_ok=True)
        others = set((self.path / _PARTS).glob("*.jsonl")) - {self._part(0)}
        write_atomically(self._part(0), "".join(map(_PART.line, planned)))
        for other in others:
            with writing(other):
                other.unlink()

    def end(self, planned: Sequence[Planned]) -> None:
        """Writes both files from all planned iterations, and removes the parts.

        Raises:
            RunError: The file system refuses, as when the disk is full.
        """
        times = (PlanningTime(*each.record.key, each.planning_ms) for each in planned)
        write_atomically(self.path / PLANNING, "".join(map(_TIMES.line, times)))
        records = (_RECORDS.line(each.record) for each in planned)
        write_atomically(self.path / PLANNED, "".join(records))
        with writing(self.path / _PARTS):
            for part in (self.path / _PARTS).glob("*.jsonl"):
                part.unlink()
            (self.path / _PARTS).rmdir()

    def _check_inputs(self, inputs: Mapping[str, str]) -> None:
        path = self.path / INPUTS
        try:
            stored = dict(json.loads(read_text(path)))
        except (ValueError, TypeError, RecursionError):
            raise InputError(f"{path}: is damaged; remove {self.path}") from None
        for name, checksum in inputs.items():
            if stored.get(name) != checksum:
                raise InputError(
                    f"{self.path} holds a simulation with other contents of {name} (checksum "
                    f"{quoted(stored.get(name))}, now {checksum}); restore them, name another "
                    "folder, or remove this one"
                )

    def _part(self, rank: int) -> Path:
        return self.path / _PARTS / f"{rank:05d}.jsonl"

    def _finished(self) -> Iterator[Planned]:
        records, times = _RECORDS.read(self.path / PLANNED), _TIMES.read(self.path / PLANNING)
        for (_, record), (_, time) in zip(records, times, strict=True):
            yield Planned(record, time.planning_ms)
