"""What executing a plan took."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class IterationTrace:
    """Measurements of one rank in one iteration.

    Attributes:
        iteration: Number of the iteration.
        rank: The rank, as plans number it.
        start_ms: Per instruction of the plan, its start since the start of the iteration.
        end_ms: Per instruction, its end.
        loss: This stage's part of the iteration's loss; stages add up to it.
        gradient_norm: Norm over the whole model before clipping.
        learning_rate: Of this iteration's step.
        peak_bytes: Largest memory of activations at any moment.
        peak_is_whole: Whether that counts what passes need only while they run.
    """

    iteration: int
    rank: int
    start_ms: tuple[float, ...]
    end_ms: tuple[float, ...]
    loss: float
    gradient_norm: float
    learning_rate: float
    peak_bytes: int
    peak_is_whole: bool = False
