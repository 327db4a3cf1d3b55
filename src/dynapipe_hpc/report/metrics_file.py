"""The file metrics.jsonl: one line per iteration, in ascending order, for programs that watch."""

import json
from collections.abc import Iterator
from pathlib import Path

from dynapipe_hpc.data.errors import InputError, quoted
from dynapipe_hpc.data.input_file import why_unreadable
from dynapipe_hpc.data.replacing import replacing, writing
from dynapipe_hpc.report.complete_lines import complete_lines
from dynapipe_hpc.report.metrics import Metrics

MOST_LINE_CHARACTERS = 1 << 16


class MetricsFile:
    """A file that grows by complete lines; runs of earlier versions have none."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def add(self, metrics: Metrics) -> None:
        """Appends an iteration.

        Raises:
            RunError: The file system refuses, as when the disk is full.
        """
        with writing(self.path), self.path.open("a", encoding="utf-8") as file:
            file.write(metrics.line())

    def cut(self, n_kept: int) -> None:
        """Removes iterations from number `n_kept` on, and a line that was not completed.

        Raises:
            InputError: A line is damaged.
        """
        if self.path.exists():
            with replacing(self.path) as beside, beside.open("w", encoding="utf-8") as file:
                file.writelines(line for k, line in self.lines() if k < n_kept)

    def lines(self) -> Iterator[tuple[int, str]]:
        """Number of the iteration and text of every line, except one still being written.

        Raises:
            InputError: A line is damaged, or repeats an iteration.
        """
        if not self.path.exists():
            return
        if reason := why_unreadable(self.path):
            raise InputError(f"{self.path}: cannot be read: {reason}")
        last = -1
        for number, line in enumerate(complete_lines(self.path, MOST_LINE_CHARACTERS), start=1):
            iteration = _iteration(line, where := f"{self.path}:{number}")
            if iteration <= last:
                raise InputError(
                    f"{where}: iteration {iteration} comes after iteration {last}: two runs wrote "
                    "into this file, or lines were repeated; keep those of one run"
                )
            last = iteration
            yield iteration, line


def _iteration(line: str, where: str) -> int:
    try:
        iteration = json.loads(line)["iteration"]
        if type(iteration) is int and iteration >= 0:
            return iteration
    except (ValueError, TypeError, KeyError, RecursionError):
        pass
    raise InputError(
        f"{where}: {quoted(line)} is not an iteration's metrics; remove the line or the file"
    )
