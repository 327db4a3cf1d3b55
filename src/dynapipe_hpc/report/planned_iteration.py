"""Record of an iteration that was only planned: one line of planned.csv."""

import csv
import io
from collections.abc import Sequence
from dataclasses import astuple, dataclass, fields
from typing import Self, get_type_hints

from dynapipe_hpc.data.errors import InputError, quoted


@dataclass(frozen=True, slots=True)
class PlannedIteration:
    """Predicted numbers of one iteration by one method; nothing of it was measured.

    Attributes:
        method: Name of the method.
        iteration: Number of the iteration, from 0.
        samples: Number of samples.
        input_tokens: Real input tokens.
        target_tokens: Real target tokens.
        row_tokens: Tokens computed in rows, padding included; in those of the encoder if there is
            one.
        target_row_tokens: Tokens computed in rows of a decoder with an encoder, else 0.
        microbatches: Number of micro-batches on all replicas.
        makespan_ms: When the last pass of the slowest replica ends.
        iteration_ms: When all weights are updated.
        peak_bytes: Largest peak of memory of any rank.
        reason: Why there is no plan, in which case the numbers that a plan has are 0; else empty.
    """

    method: str
    iteration: int
    samples: int
    input_tokens: int
    target_tokens: int
    row_tokens: int
    target_row_tokens: int
    microbatches: int
    makespan_ms: float
    iteration_ms: float
    peak_bytes: float
    reason: str

    @property
    def key(self) -> tuple[str, int]:
        """Method and iteration, of which there is one record."""
        return self.method, self.iteration

    @classmethod
    def of_line(cls, cells: Sequence[str], where: str) -> Self:
        """Reads a line of the file.

        Raises:
            InputError: It has other values; names the place.
        """
        if len(cells) != len(COLUMNS):
            raise InputError(f"{where}: has {len(cells)} values, not {len(COLUMNS)}; remove it")
        types = get_type_hints(cls)
        try:
            return cls(*(types[name](cell) for name, cell in zip(COLUMNS, cells, strict=True)))
        except ValueError:
            raise InputError(f"{where}: {quoted(','.join(cells))} is damaged; remove it") from None


COLUMNS = tuple(field.name for field in fields(PlannedIteration))


def line_of(values: Sequence[str | float]) -> str:
    """A line of CSV; floats are written such that they are read back exactly."""
    line = io.StringIO()
    csv.writer(line, lineterminator="\n").writerow(values)
    return line.getvalue()


def cells_of(record: PlannedIteration) -> tuple[str | float, ...]:
    """The values of a record by column."""
    return astuple(record)
