"""One line of iterations.csv."""

from dataclasses import dataclass, fields
from typing import Any

from dynapipe_hpc.data.errors import InputError, quoted


@dataclass(frozen=True, slots=True)
class IterationRecord:
    """An iteration as seen over all ranks.

    Attributes:
        iteration: Number of the iteration, from 0.
        loss: Of the whole global batch.
        gradient_norm: Over all stages, before clipping.
        learning_rate: Of the iteration's step.
        n_samples: Samples of the global batch.
        n_microbatches: Micro-batches over all replicas.
        real_tokens: Tokens of the samples.
        padded_tokens: Tokens computed, padding included.
        predicted_ms: The planner's time of the iteration.
        measured_ms: Its time until all ranks have ended, waiting for plans included.
        predicted_peak_bytes: The planner's peak memory of activations, largest over ranks.
        measured_peak_bytes: Measured peak memory of activations, largest over ranks.
        planning_ms: Time that one core spent planning this iteration.
        waited_ms: Longest time that a rank waited for its plan.
        plans_ahead: Plans that were ready beyond this one when it was taken.
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


COLUMNS = tuple(field.name for field in fields(IterationRecord))
INTEGERS = {field.name for field in fields(IterationRecord) if field.type is int}
POSITIVE = ("real_tokens", "padded_tokens", "predicted_ms", "measured_ms")
LARGEST = 1e18


def parse_line(line: str, place: str) -> IterationRecord:
    """Reads a line of iterations.csv.

    Args:
        line: Values with commas between them.
        place: File and line, for the message.

    Raises:
        InputError: A value is missing, is no number, or cannot be.
    """
    row = line.strip().split(",")
    if len(row) != len(COLUMNS):
        raise InputError(f"{place}: {len(row)} values where {len(COLUMNS)} belong; remove the line")
    values: dict[str, Any] = {
        column: _value(column, cell, place) for column, cell in zip(COLUMNS, row, strict=True)
    }
    for column in POSITIVE:
        if not 0 < values[column] <= LARGEST:
            shown = quoted(values[column])
            raise InputError(f"{place}: {column} is {shown}, not a number > 0; remove the line")
    return IterationRecord(**values)


def _value(column: str, cell: str, place: str) -> int | float:
    try:
        return int(cell) if column in INTEGERS else float(cell)
    except ValueError as error:
        kind = "a whole number" if column in INTEGERS else "a number"
        raise InputError(
            f"{place}: {column} is {quoted(cell)}, not {kind}; remove the line"
        ) from error
