"""Predicted and measured times of passes, and costs that are corrected by them."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from enum import IntEnum
from typing import Self

import numpy as np

from dynapipe_hpc.data.errors import InputError
from dynapipe_hpc.data.microbatch import Layout, Recompute
from dynapipe_hpc.planner.cost.cost_model import CostModel, FloatArray, Shapes, StageCosts


class Timed(IntEnum):
    """Parts of a micro-batch's passes with corrections of their own; a backward pass has two.

    Attributes:
        FORWARD: Forward pass.
        GRADIENT: Gradients of inputs.
        WEIGHT: Gradients of weights.
    """

    FORWARD = 0
    GRADIENT = 1
    WEIGHT = 2


@dataclass(frozen=True, slots=True, eq=False)
class Corrections:
    """Factors by which passes take longer than a cost model says.

    `factors`: Factors of the fastest replica, shape (len(Layout), len(Recompute), n_stages,
    len(Timed)). `slowness`: Factors of every rank on top of these, shape (n_replicas, n_stages);
    None if all replicas are equally fast.
    """

    factors: FloatArray
    slowness: FloatArray | None = None


def corrected_cost(cost: CostModel, corrections: Corrections) -> CostModel:
    """A copy of a cost model with the times of its passes corrected; memory and update stay.

    Every layout, mode and stage has factors of its own.
    """

    def price(
        shapes: Shapes, layout: Layout, recompute: Recompute, out: FloatArray | None
    ) -> StageCosts:
        plain = cost.of_layout(layout).stage_costs(shapes, recompute)
        factors = corrections.factors[layout, recompute]
        backward_ms, weight_ms = plain.backward_ms, plain.weight_ms
        # Infinite times have no difference, and stay infinite.
        gradient_ms = np.subtract(
            backward_ms, weight_ms, where=np.isfinite(weight_ms), out=backward_ms.copy()
        )
        return StageCosts.from_times(
            forward_ms=plain.forward_ms * factors[:, Timed.FORWARD],
            backward_ms=gradient_ms * factors[:, Timed.GRADIENT]
            + weight_ms * factors[:, Timed.WEIGHT],
            weight_ms=weight_ms * factors[:, Timed.WEIGHT],
            splitting_ms=plain.splitting_ms * factors[:, Timed.GRADIENT],
            boundary_bytes=plain.boundary_bytes,
            stored_bytes=plain.stored_bytes,
            forward_transient_bytes=plain.forward_transient_bytes,
            backward_transient_bytes=plain.backward_transient_bytes,
            out=out,
        )

    return replace(
        cost,
        price=price,
        bound=cost.bound and corrected_cost(cost.monotone, corrections).price,
        describe=lambda: f"{cost.describe()}, corrected by measured passes",
        layouts=tuple(Layout),
        kind_of_stage=None,
        slowness=corrections.slowness,
    )


KEPT = 0.8
"""Share of the sums that is left after another iteration: the last five count for two thirds."""
COMMON = 0.01
"""Weight of what all modes of a stage have in common, as a share of the stage's time."""
MAX_AT_ONCE = 4.0
"""Largest factor by which an iteration counts as slower than expected: it may be a stall."""


ALIKE = 1.05
"""Ratio of times up to which replicas are taken to be equally fast."""


def shape_of(n_stages: int) -> tuple[int, ...]:
    """Shape of the sums of `PassTimes`, by mode and part, and of factors."""
    return (len(Layout), len(Recompute), n_stages, len(Timed))


@dataclass(frozen=True, slots=True, eq=False)
class PassTimes:
    """Sums of predicted and measured times of passes, in which earlier iterations fade.

    An unsplit backward pass counts for both parts, as it does not show how long either took.

    `expected_ms`: Times predicted, by the factors so far, for passes of each rank, shape
    (n_replicas, n_stages).
    """

    predicted_ms: FloatArray  # times that an uncorrected cost model predicts, shape `shape_of`
    measured_ms: FloatArray  # times that the same passes took, of the same shape
    expected_ms: FloatArray
    taken_ms: FloatArray  # times that the rank took for them, of the same shape

    @classmethod
    def none(cls, n_replicas: int, n_stages: int) -> Self:
        """No passes."""
        of_modes, of_ranks = shape_of(n_stages), (n_replicas, n_stages)
        return cls(*(np.zeros(shape) for shape in (of_modes, of_modes, of_ranks, of_ranks)))

    @classmethod
    def from_numbers(cls, numbers: Sequence[float], n_replicas: int, n_stages: int) -> Self:
        """The sums, from one list of all their numbers, see `numbers`."""
        shapes = [sums.shape for sums in cls.none(n_replicas, n_stages)._sums]
        ends = np.cumsum([np.prod(shape) for shape in shapes])
        times = np.array(numbers, np.float64)
        if times.shape != (ends[-1],) or not (np.isfinite(times) & (times >= 0)).all():
            raise InputError(f"pass times are not {ends[-1]} finite numbers >= 0")
        parts = np.split(times, ends[:-1])
        return cls(*(part.reshape(shape) for part, shape in zip(parts, shapes, strict=True)))

    @property
    def numbers(self) -> list[float]:
        values: list[float] = np.concatenate([sums.ravel() for sums in self._sums]).tolist()
        return values

    @property
    def _sums(self) -> tuple[FloatArray, ...]:
        return (self.predicted_ms, self.measured_ms, self.expected_ms, self.taken_ms)

    def after(self, iteration: Self) -> Self:
        """The sums after another iteration, in which much slower passes count as stalls."""
        measured_ms, taken_ms = iteration.measured_ms, iteration.taken_ms
        if self.predicted_ms.any():
            most_ms = MAX_AT_ONCE * self.factors * iteration.predicted_ms
            measured_ms = np.minimum(measured_ms, most_ms)
            taken_ms = np.minimum(taken_ms, MAX_AT_ONCE * iteration.expected_ms)
        return type(self)(
            KEPT * self.predicted_ms + iteration.predicted_ms,
            KEPT * self.measured_ms + measured_ms,
            KEPT * self.expected_ms + iteration.expected_ms,
            KEPT * self.taken_ms + taken_ms,
        )

    @property
    def factors(self) -> FloatArray:
        """Factors by which passes take longer than predicted, shape `shape_of`.

        A mode that was seen little, or long ago, has the factor of its stage in all modes; a part
        that was never seen has the factor of the stage's other parts; a stage never seen has 1.
        """
        of_stage = _ratio(self.measured_ms, self.predicted_ms, (0, 1, 3), 1.0)
        of_part = _ratio(self.measured_ms, self.predicted_ms, (0, 1), of_stage)
        common_ms = COMMON * self.predicted_ms.sum((0, 1), keepdims=True)
        predicted_ms = self.predicted_ms + common_ms
        measured_ms = self.measured_ms + of_part * common_ms
        return _ratio(measured_ms, predicted_ms, (), of_part)

    @property
    def slowness(self) -> FloatArray:
        """Time of every rank as a multiple of its expected time, shape (n_replicas, n_stages)."""
        return _ratio(self.taken_ms, self.expected_ms, (), 1.0)

    @property
    def levels(self) -> FloatArray:
        """Time of every rank as a multiple of the prediction, shape (n_replicas, n_stages)."""
        of_stage = _ratio(self.measured_ms, self.predicted_ms, (0, 1, 3), 1.0)
        return self.slowness * of_stage[0, 0, :, 0]

    @property
    def corrections(self) -> Corrections:
        """Factors of the fastest replica's times; the slowness of each replica if speeds differ."""
        fastest = self.slowness.min(axis=0)
        slower = self.slowness / fastest
        if (slower < ALIKE).all():
            return Corrections(self.factors)
        return Corrections(self.factors * fastest[:, None], slower)


def _ratio(
    measured_ms: FloatArray,
    predicted_ms: FloatArray,
    axes: tuple[int, ...],
    unknown: FloatArray | float,
) -> FloatArray:
    """Quotient of sums over axes, which are kept; `unknown` where nothing was predicted."""
    predicted_ms = predicted_ms.sum(axes, keepdims=True)
    filled = np.broadcast_to(unknown, predicted_ms.shape).copy()
    quotient: FloatArray = np.divide(
        measured_ms.sum(axes, keepdims=True), predicted_ms, where=predicted_ms > 0, out=filled
    )
    return quotient
