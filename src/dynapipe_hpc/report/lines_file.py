"""Files of JSON lines: one record per line."""

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Generic, TypeVar

from pydantic import BeforeValidator, TypeAdapter, ValidationError

from dynapipe_hpc.data.atomic_write import atomic_write, writing
from dynapipe_hpc.data.errors import InputError, quoted
from dynapipe_hpc.data.input_file import why_unreadable

MAX_LINE_CHARACTERS = 1 << 24
_MAX_LAST_BYTES = 1 << 17
T = TypeVar("T")


def _parse_null(value: object) -> object:
    return float("nan") if value is None else value


# JSON has no NaN and no infinity: both are written as null.
Number = Annotated[float, BeforeValidator(_parse_null)]


class LinesFile(Generic[T]):
    """A file with a record, a dataclass, as JSON in every line."""

    def __init__(
        self,
        path: Path,
        kind: type[T],
        key: str = "",
        most_characters: int = MAX_LINE_CHARACTERS,
    ) -> None:
        """Does not open the file. A growing file may not exist yet; its records ascend by `key`."""
        self.path, self._key, self._most_characters = path, key, most_characters
        self._adapter = TypeAdapter(kind)

    def line(self, record: T) -> str:
        return self._adapter.dump_json(record).decode() + "\n"

    def read(self) -> Iterator[tuple[str, T]]:
        """Place and record of every line, except one that is still being written."""
        if reason := why_unreadable(self.path):
            raise InputError(f"{self.path}: cannot be read: {reason}")
        for number, line in enumerate(complete_lines(self.path, self._most_characters), start=1):
            yield (where := f"{self.path}:{number}"), self._parse(line, where)

    def _parse(self, line: str, where: str) -> T:
        try:
            return self._adapter.validate_json(line, strict=True)
        except ValidationError as error:
            first, *_ = error.errors(include_url=False)
            place = ".".join(map(str, first["loc"]))
            value = line if first["type"] in ("json_invalid", "missing") else first["input"]
            raise InputError(
                f"{where}: {place + ' is ' if place else ''}{quoted(value)}: {first['msg']}; "
                "remove the line"
            ) from None

    def begin(self) -> None:
        with atomic_write(self.path):
            pass

    def add(self, record: T) -> None:
        with writing(self.path), self.path.open("a", encoding="utf-8") as file:
            file.write(self.line(record))

    def cut(self, end: int) -> None:
        """Removes records from key `end` on, and a line that was not completed."""
        if self.path.exists():
            with (
                atomic_write(self.path) as temporary,
                temporary.open("w", encoding="utf-8") as file,
            ):
                kept = (record for record in self.records() if getattr(record, self._key) < end)
                file.writelines(map(self.line, kept))

    def n_lines(self) -> int:
        """Number of complete lines, damaged or not."""
        if not self.path.exists():
            return 0
        return sum(1 for _ in complete_lines(self.path, MAX_LINE_CHARACTERS))

    def records(self) -> Iterator[T]:
        """All records so far, except one whose line is still being written."""
        if not os.path.lexists(self.path):
            return
        before = -1
        for where, record in self.read():
            now = getattr(record, self._key)
            if now <= before:
                raise InputError(
                    f"{where}: {self._key} {now} comes after {before}: two runs wrote into this "
                    "file, or lines were repeated; keep the lines of one run"
                )
            before = now
            yield record

    def last(self) -> T | None:
        """The last record, except one that is still being written; None if there is none."""
        if not self.path.exists():
            return None
        with self.path.open("rb") as file:
            file.seek(max(0, file.seek(0, os.SEEK_END) - _MAX_LAST_BYTES))
            lines = file.read().decode(errors="replace").split("\n")
        return self._parse(lines[-2], f"{self.path}: its last line") if lines[1:] else None


def complete_lines(path: Path, most_characters: int) -> Iterator[str]:
    """Lines with their ends, without one that is still being written.

    An overlong line is truncated to `most_characters`, and is the last.
    """
    with path.open(encoding="utf-8", errors="replace") as file:
        while (line := file.readline(most_characters)).endswith("\n"):
            yield line
        if len(line) == most_characters:
            yield line
