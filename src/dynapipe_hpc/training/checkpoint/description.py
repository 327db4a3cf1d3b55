"""The file that makes a checkpoint complete: what it is of, and which parts belong to it."""

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Self

from dynapipe_hpc.training.checkpoint.files import DamagedError, read_fields, write_fields
from dynapipe_hpc.training.optimizer_state import Counters

NAME, KIND, VERSION = "checkpoint.json", "checkpoint", 1

Facts = Mapping[str, str | int | float | bool | None]


@dataclass(frozen=True, slots=True)
class Description:
    """A complete checkpoint.

    Attributes:
        n_done: Iterations done; the next one has this number.
        counters: The state that all ranks hold alike.
        facts: What must stay as it is when training goes on, by name.
        part_checksums: By rank that wrote.
    """

    n_done: int
    counters: Counters
    facts: Facts
    part_checksums: tuple[str, ...]

    def write(self, folder: Path) -> None:
        """Completes a checkpoint.

        Raises:
            RunError: The file system refuses, as when the disk is full.
        """
        write_fields(folder / NAME, KIND, VERSION, asdict(self))

    @classmethod
    def read(cls, folder: Path) -> Self:
        """What a complete checkpoint is of.

        Raises:
            DamagedError: It is not complete, or damaged.
        """
        path = folder / NAME
        fields = read_fields(path, KIND, VERSION)
        try:
            return cls(
                fields["n_done"],
                Counters(**fields["counters"]),
                fields["facts"],
                tuple(fields["part_checksums"]),
            )
        except (KeyError, TypeError) as error:
            raise DamagedError(f"{path}: is not a description of a checkpoint: {error}") from None
