"""Description of a checkpoint: the file that makes it complete and lists its parts."""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Self

from dynapipe_hpc.data.errors import InputError, quoted
from dynapipe_hpc.training.checkpoint.files import (
    DamagedError,
    Fields,
    read_fields,
    write_fields,
)
from dynapipe_hpc.training.counters import Counters

NAME, KIND, VERSION = "checkpoint.json", "checkpoint", 1

Facts = Mapping[str, str | int | float | bool | None]


@dataclass(frozen=True, slots=True)
class Description:
    """Description of a complete checkpoint.

    Attributes:
        n_done: Number of finished iterations, which is the number of the next one.
        counters: Counters of the optimizer, which are equal on all ranks.
        facts: Settings by name that must not change when training resumes.
        part_checksums: Checksums of the parts, by the rank that wrote them.
        online: Measured times that the next plans depend on; none if costs are not corrected.
    """

    n_done: int
    counters: Counters
    facts: Facts
    part_checksums: tuple[str, ...]
    online: Sequence[Sequence[float]] = ()

    def write(self, folder: Path) -> None:
        """Writes the description, which completes a checkpoint.

        Raises:
            RunError: The file system refuses, as when the disk is full.
        """
        write_fields(folder / NAME, KIND, VERSION, asdict(self))

    @classmethod
    def read(cls, folder: Path) -> Self:
        """Reads the description of a complete checkpoint.

        Raises:
            DamagedError: The checkpoint is incomplete or damaged.
        """
        path = folder / NAME
        fields = read_fields(path, KIND, VERSION)
        try:
            return cls(
                _checked(fields, "n_done", _is_count),
                _counters(_checked(fields, "counters", _is_object)),
                _checked(fields, "facts", _is_object),
                tuple(_checked(fields, "part_checksums", _are_texts)),
                tuple(_checked({"online": [], **fields}, "online", _are_lists_of_numbers)),
            )
        except (KeyError, TypeError, InputError) as error:
            raise DamagedError(f"{path}: is not a description of a checkpoint: {error}") from None


def _counters(fields: Fields) -> Counters:
    for name in fields.keys() - {"loss_scale"}:
        _checked(fields, name, _is_count)
    _checked(fields, "loss_scale", _is_scale)
    return Counters(**fields)


def _checked(fields: Fields, name: str, is_right: Callable[[Any], bool]) -> Any:
    if not is_right(value := fields[name]):
        raise InputError(f"{name} is {quoted(value)}, which is not valid")
    return value


def _is_count(value: object) -> bool:
    return type(value) is int and 0 <= value < 1 << 62


def _is_scale(value: object) -> bool:
    return isinstance(value, int | float) and 0 < value < math.inf


def _are_lists_of_numbers(value: object) -> bool:
    return isinstance(value, list) and all(
        isinstance(each, list) and all(type(number) in (int, float) for number in each)
        for each in value
    )


def _is_object(value: object) -> bool:
    return isinstance(value, dict)


def _are_texts(value: object) -> bool:
    return isinstance(value, list) and bool(value) and all(isinstance(v, str) for v in value)
