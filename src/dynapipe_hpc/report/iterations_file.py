"""iterations.csv: a line per iteration, in ascending order."""

from collections.abc import Iterator
from dataclasses import astuple
from pathlib import Path

from dynapipe_hpc.data.errors import InputError
from dynapipe_hpc.data.input_file import why_unreadable
from dynapipe_hpc.data.replacing import replacing, writing
from dynapipe_hpc.report.iteration_record import COLUMNS, IterationRecord, parse_line

MOST_LINE_CHARACTERS = 1 << 16
_HEADER = ",".join(COLUMNS) + "\n"


class IterationsFile:
    """A file that grows by whole lines, and is read line by line: it may have any length."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def begin(self) -> None:
        """Writes the header, in place of whatever was there."""
        with replacing(self.path) as beside:
            beside.write_text(_HEADER, encoding="utf-8")

    def add(self, record: IterationRecord) -> None:
        """Appends an iteration.

        Raises:
            RunError: The file system refuses, as when the disk is full.
        """
        with writing(self.path), self.path.open("a", encoding="utf-8") as file:
            file.write(_line(record))

    def cut(self, n_kept: int) -> None:
        """Leaves out iterations from `n_kept` on.

        Raises:
            InputError: A line is damaged.
        """
        with replacing(self.path) as beside, beside.open("w", encoding="utf-8") as file:
            file.write(_HEADER)
            file.writelines(_line(r) for r in self.records() if r.iteration < n_kept)

    def n_lines(self) -> int:
        """Iterations that have a whole line, damaged or not."""
        return max(0, sum(1 for _ in self._lines()) - 1)

    def records(self) -> Iterator[IterationRecord]:
        """All iterations so far; a last line still being written is left out.

        Raises:
            InputError: A line is damaged, or repeats an iteration.
        """
        if reason := why_unreadable(self.path):
            raise InputError(f"{self.path}: cannot be read: {reason}")
        lines, last = self._lines(), -1
        if next(lines, "") != _HEADER:
            raise InputError(f"{self.path}:1: the columns must be {','.join(COLUMNS)}")
        for number, line in enumerate(lines, start=2):
            record = parse_line(line, place := f"{self.path}:{number}")
            if record.iteration <= last:
                raise InputError(
                    f"{place}: iteration {record.iteration} comes after iteration {last}: two runs "
                    "wrote into this file, or lines were repeated; keep those of one run"
                )
            last = record.iteration
            yield record

    def _lines(self) -> Iterator[str]:
        """Whole lines; one that is too long for any is cut, and the last."""
        with self.path.open(encoding="utf-8", errors="replace") as file:
            while (line := file.readline(MOST_LINE_CHARACTERS)).endswith("\n"):
                yield line
            if len(line) == MOST_LINE_CHARACTERS:
                yield line


def _line(record: IterationRecord) -> str:
    return ",".join(repr(value) for value in astuple(record)) + "\n"
