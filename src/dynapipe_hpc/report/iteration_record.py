"""Numbers of an iteration, and their record: one line of iterations.jsonl."""

import dataclasses
import math
from enum import Enum, auto
from typing import Annotated

from pydantic import Field
from pydantic.dataclasses import dataclass as validated

from dynapipe_hpc.report.lines_file import Number
from dynapipe_hpc.report.preference_means import PreferenceMeans

MAX_VALUE = 1e18


class Over(Enum):
    """Combination of a number over ranks, as in `Annotated[int, Over.SUM]`."""

    SAME = auto()
    SUM = auto()
    MAX = auto()
    MIN = auto()


_POSITIVE = Field(gt=0, le=MAX_VALUE)
_COUNT = Field(ge=0, le=int(MAX_VALUE))


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class IterationNumbers:
    """Numbers of an iteration, of one rank or, once they are combined, of all.

    The shards of a stage execute the same plan in step, so the first of them counts for all where
    numbers are added up. One rank at most has planned the iteration: on the others, what is known
    from planning has its default.

    Attributes:
        iteration: Number of the iteration, from 0.
        loss: Loss of the global batch; the part that the rank's stage contributes.
        gradient_norm: Norm of the model's gradient over all stages, before clipping.
        learning_rate: Learning rate of the iteration's step.
        n_samples: Number of samples in the global batch.
        real_tokens: Number of tokens of the samples.
        n_microbatches: Micro-batches of all replicas; on a rank those of its replica if it is in
            the first stage, else 0.
        padded_tokens: Number of tokens computed, padding included, counted as micro-batches are.
        predicted_ms: Predicted time of the iteration, update included.
        predicted_peak_bytes: Predicted peak of activations, largest over ranks; includes transient
            memory if the device measures that too.
        measured_peak_bytes: Measured peak of the same.
        waited_ms: Longest time that a rank waited for its plan.
        planning_ms: Processor time of planning this iteration.
        plans_ahead: Number of later plans that were ready when this one was taken.
        longest_trip_ms: Predicted round trip of the longest sample through the stages, which no
            plan of whole samples beats.
        outlier_sample: Index of the sample that alone lengthens the iteration; -1 if none does.
        outlier_tokens: Number of its tokens; 0 without one.
        outlier_ms: Predicted time that it adds beyond its share of the work; 0 without one.
        passes_ms: Time in which ranks executed passes, added up.
        last_pass_ms: End of the last pass, from the start of the iteration.
        n_ranks: Number of ranks that the numbers are of.
        preferences: Sums over preference pairs, in the order of `PreferenceMeans`; empty if no
            pairs are trained.
    """

    iteration: Annotated[int, _COUNT, Over.SAME]
    loss: Annotated[Number, Over.SUM]
    gradient_norm: Annotated[Number, Over.SAME]
    learning_rate: Annotated[Number, Over.SAME]
    n_samples: Annotated[int, Over.SAME]
    real_tokens: Annotated[int, _POSITIVE, Over.SAME]
    n_microbatches: Annotated[int, Over.SUM]
    padded_tokens: Annotated[int, _POSITIVE, Over.SUM]
    predicted_ms: Annotated[float, _POSITIVE, Over.SAME]
    predicted_peak_bytes: Annotated[int, Over.MAX]
    measured_peak_bytes: Annotated[int, Over.MAX]
    waited_ms: Annotated[float, Over.MAX]
    planning_ms: Annotated[float, Over.SUM] = 0.0
    plans_ahead: Annotated[int, Over.MIN]
    longest_trip_ms: Annotated[float, Over.MAX] = 0.0
    outlier_sample: Annotated[int, Over.MAX] = -1
    outlier_tokens: Annotated[int, Over.MAX] = 0
    outlier_ms: Annotated[float, Over.MAX] = 0.0
    passes_ms: Annotated[float, Over.SUM]
    last_pass_ms: Annotated[float, Over.MAX]
    n_ranks: Annotated[int, Over.SUM] = 1
    preferences: Annotated[tuple[Number, ...], Over.SUM] = ()

    @property
    def has_outlier(self) -> bool:
        """Whether one sample alone lengthens the iteration."""
        return self.outlier_sample >= 0

    @property
    def longest_trip_share(self) -> float:
        """Share of the predicted iteration that the longest sample's own trip takes."""
        return self.longest_trip_ms / self.predicted_ms

    @property
    def preference_means(self) -> PreferenceMeans | None:
        """Means over the preference pairs of the batch; None if no pairs are trained."""
        return PreferenceMeans.from_sums(self.preferences, self.n_samples)

    @property
    def padding_efficiency(self) -> float:
        """Real tokens over those computed."""
        return self.real_tokens / self.padded_tokens

    @property
    def bubble_share(self) -> float:
        """Share of the time until the last pass in which the average rank executes none."""
        if not self.last_pass_ms:
            return math.nan
        return 1 - self.passes_ms / self.n_ranks / self.last_pass_ms


@validated(frozen=True, slots=True, kw_only=True)
class IterationRecord(IterationNumbers):
    """The numbers of all ranks, and the state of the run after the iteration.

    Attributes:
        measured_ms: Iteration time until all ranks have ended, including waits for plans.
        time: Time at which the iteration ended, as ISO 8601 with its zone.
        n_iterations: Number of iterations of the whole run.
        tokens: Real tokens of all iterations so far, those of earlier starts included.
        seconds_left: Estimate of the time until the last iteration ends.
    """

    measured_ms: Annotated[float, _POSITIVE]
    time: str
    n_iterations: int
    tokens: int
    seconds_left: float

    @property
    def tokens_per_s(self) -> float:
        """Real tokens per second of this iteration."""
        return 1e3 * self.real_tokens / self.measured_ms
