"""The file iterations.csv: one line per iteration, in ascending order."""

from collections.abc import Iterator
from operator import attrgetter
from pathlib import Path

from dynapipe_hpc.data.errors import InputError
from dynapipe_hpc.data.input_file import why_unreadable
from dynapipe_hpc.data.replacing import replacing, writing
from dynapipe_hpc.report.complete_lines import complete_lines
from dynapipe_hpc.report.iteration_record import (
    COLUMNS,
    EARLIER_COLUMNS,
    IterationRecord,
    parse_line,
)

MOST_LINE_CHARACTERS = 1 << 16
_HEADER = ",".join(COLUMNS) + "\n"
_values_of = attrgetter(*COLUMNS)


class IterationsFile:
    """A file that grows by complete lines and is read line by line, so that it may be long."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def begin(self) -> None:
        """Writes the header, replacing an existing file."""
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
        """Removes iterations from number `n_kept` on.

        Raises:
            InputError: A line is damaged.
        """
        with replacing(self.path) as beside, beside.open("w", encoding="utf-8") as file:
            file.write(_HEADER)
            file.writelines(_line(r) for r in self.records() if r.iteration < n_kept)

    def n_lines(self) -> int:
        """Number of iterations that have a complete line, damaged or not."""
        return max(0, sum(1 for _ in complete_lines(self.path, MOST_LINE_CHARACTERS)) - 1)

    def records(self) -> Iterator[IterationRecord]:
        """All iterations so far, except one whose line is still being written.

        Raises:
            InputError: A line is damaged, or repeats an iteration.
        """
        if reason := why_unreadable(self.path):
            raise InputError(f"{self.path}: cannot be read: {reason}")
        lines, last = complete_lines(self.path, MOST_LINE_CHARACTERS), -1
        columns = next(lines, "").rstrip("\n").split(",")
        if columns not in (list(COLUMNS), list(EARLIER_COLUMNS)):
            raise InputError(f"{self.path}:1: the columns must be {','.join(COLUMNS)}")
        for number, line in enumerate(lines, start=2):
            record = parse_line(line, where := f"{self.path}:{number}", columns)
            if record.iteration <= last:
                raise InputError(
                    f"{where}: iteration {record.iteration} comes after iteration {last}: two runs "
                    "wrote into this file, or lines were repeated; keep those of one run"
                )
            last = record.iteration
            yield record


def _line(record: IterationRecord) -> str:
    return ",".join(repr(value) for value in _values_of(record)) + "\n"
