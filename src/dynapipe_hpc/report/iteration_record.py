"""Record of an iteration: one line of iterations.csv."""

from collections.abc import Sequence
from dataclasses import dataclass, fields
from typing import Any

from dynapipe_hpc.data.errors import InputError, quoted


@dataclass(frozen=True, slots=True)
class IterationRecord:
    """Measured and predicted numbers of one iteration, over all ranks.

    Attributes:
        iteration: Number of the iteration, from 0.
        loss: Loss of the global batch.
        gradient_norm: Norm of the model's gradient over all stages, before clipping.
        learning_rate: Learning rate of the iteration's step.
        n_samples: Number of samples in the global batch.
        n_microbatches: Number of micro-batches over all replicas.
        real_tokens: Number of tokens of the samples.
        padded_tokens: Number of tokens computed, padding included.
        predicted_ms: Iteration time that the planner predicted.
        measured_ms: Iteration time until all ranks have ended, including waits for plans.
        predicted_peak_bytes: Predicted peak memory of activations, largest over ranks.
        measured_peak_bytes: Measured peak memory of activations, largest over ranks.
        planning_ms: Time that one core spent planning this iteration.
        waited_ms: Longest time that a rank waited for its plan.
        plans_ahead: Number of later plans that were ready when this one was taken.
        outlier_sample: Index of the sample that alone lengthens the iteration; -1 if none does.
        outlier_tokens: Number of its tokens; 0 without one.
        outlier_ms: Predicted time that it adds beyond its share of the work; 0 without one.
    """

    iteration: int
    loss: float
    gradient_norm: float
    learning_rate: float
    n_samples: int
    n_microbatches: int
    real_tokens: int
    padded_tokens: int
    predicted_ms: float
    measured_ms: float
    predicted_peak_bytes: int
    measured_peak_bytes: int
    planning_ms: float
    waited_ms: float
    plans_ahead: int
    outlier_sample: int = -1
    outlier_tokens: int = 0
    outlier_ms: float = 0.0

    @property
    def has_outlier(self) -> bool:
        """Whether one sample alone lengthens the iteration."""
        return self.outlier_sample >= 0


COLUMNS = tuple(field.name for field in fields(IterationRecord))
EARLIER_COLUMNS = COLUMNS[: COLUMNS.index("outlier_sample")]
"""Columns of files written before there were outliers."""
INTEGERS = {field.name for field in fields(IterationRecord) if field.type is int}
POSITIVE = ("real_tokens", "padded_tokens", "predicted_ms", "measured_ms")
LARGEST = 1e18


def parse_line(line: str, where: str, columns: Sequence[str] = COLUMNS) -> IterationRecord:
    """Parses a line of iterations.csv.

    Args:
        line: Comma-separated values.
        where: File and line number, for the message.
        columns: Columns of the file; fields without one have their defaults.

    Raises:
        InputError: A value is missing, not a number, or impossible.
    """
    row = line.strip().split(",")
    if len(row) != len(columns):
        raise InputError(f"{where}: has {len(row)} values, not {len(columns)}; remove the line")
    values: dict[str, Any] = {
        column: _value(column, cell, where) for column, cell in zip(columns, row, strict=True)
    }
    for column in POSITIVE:
        if not 0 < values[column] <= LARGEST:
            shown = quoted(values[column])
            raise InputError(f"{where}: {column} is {shown}, not a number > 0; remove the line")
    return IterationRecord(**values)


def _value(column: str, cell: str, where: str) -> int | float:
    try:
        return int(cell) if column in INTEGERS else float(cell)
    except ValueError as error:
        kind = "a whole number" if column in INTEGERS else "a number"
        raise InputError(
            f"{where}: {column} is {quoted(cell)}, not {kind}; remove the line"
        ) from error
