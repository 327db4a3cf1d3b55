"""Record of an iteration that was only planned: one line of planned.jsonl."""

from pydantic.dataclasses import dataclass


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
        longest_trip_ms: Round trip of the longest sample through the stages, which no plan of whole
            samples beats.
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
    longest_trip_ms: float
    peak_bytes: float
    reason: str

    @property
    def key(self) -> tuple[str, int]:
        """Method and iteration, of which there is one record."""
        return self.method, self.iteration
