"""The file evaluations.jsonl: one line per evaluation, in ascending order of iterations."""

from collections.abc import Iterator
from pathlib import Path

from dynapipe_hpc.data.errors import InputError
from dynapipe_hpc.data.input_file import why_unreadable
from dynapipe_hpc.data.replacing import replacing, writing
from dynapipe_hpc.report.complete_lines import complete_lines
from dynapipe_hpc.report.evaluation_record import EvaluationRecord

MOST_LINE_CHARACTERS = 1 << 24


class EvaluationsFile:
    """A file that grows by complete lines; a run without evaluations has none."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def add(self, record: EvaluationRecord) -> None:
        """Appends an evaluation.

        Raises:
            RunError: The file system refuses, as when the disk is full.
        """
        with writing(self.path), self.path.open("a", encoding="utf-8") as file:
            file.write(record.line())

    def cut(self, n_done: int) -> None:
        """Removes evaluations after more than `n_done` iterations.

        Raises:
            InputError: A line is damaged.
        """
        if self.path.exists():
            kept = [record.line() for record in self.records() if record.n_done <= n_done]
            with replacing(self.path) as beside:
                beside.write_text("".join(kept), encoding="utf-8")

    def records(self) -> Iterator[EvaluationRecord]:
        """All evaluations so far, except one whose line is still being written.

        Raises:
            InputError: A line is damaged, or repeats an evaluation.
        """
        if not self.path.exists():
            return
        if reason := why_unreadable(self.path):
            raise InputError(f"{self.path}: cannot be read: {reason}")
        last = -1
        for number, line in enumerate(complete_lines(self.path, MOST_LINE_CHARACTERS), start=1):
            record = EvaluationRecord.parse(line, where := f"{self.path}:{number}")
            if record.n_done <= last:
                raise InputError(
                    f"{where}: an evaluation after {record.n_done} iterations comes after one "
                    f"after {last}: two runs wrote into this file, or lines were repeated; keep "
                    "those of one run"
                )
            last = record.n_done
            yield record
