"""Cost model whose times are corrected by factors."""

from dataclasses import dataclass, replace
from enum import IntEnum
from typing import Self

import numpy as np

from dynapipe_hpc.data.microbatch import Layout, Recompute
from dynapipe_hpc.planner.cost.cost_model import FloatArray, Shapes, StageCosts
from dynapipe_hpc.planner.cost.derived_cost import DerivedCost


class Timed(IntEnum):
    """Parts of training on a micro-batch whose times are corrected apart; a backward pass has two.

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

    Attributes:
        factors: Factors of the fastest replica, shape (len(Layout), len(Recompute), n_stages,
            len(Timed)).
        slowness: Factors of every rank on top of these, shape (n_replicas, n_stages); None if all
            replicas are equally fast.
    """

    factors: FloatArray
    slowness: FloatArray | None = None


@dataclass(frozen=True, slots=True, eq=False)
class CorrectedCost(DerivedCost):
    """A `CostModel` with the memory and update of another, and the times of its passes corrected.

    Attributes:
        corrections: The corrections.
        layout: Layout that costs are asked for.
    """

    corrections: Corrections
    layout: Layout = Layout.PADDED

    @property
    def description(self) -> str:
        """Human-readable origin of the costs."""
        return f"{self.cost.description}, corrected by measured passes"

    @property
    def kind_of_stage(self) -> None:
        """None: every stage has factors of its own."""
        return None

    @property
    def slowness(self) -> FloatArray | None:
        """Factors by which the stages of replicas take longer, see `CostModel`."""
        return self.corrections.slowness

    def of_layout(self, layout: Layout) -> Self:
        """The costs of rows whose samples lie in a layout; any layout may have its own factors."""
        if layout is self.layout:
            return self
        return replace(self, cost=self.cost.of_layout(layout), layout=layout)

    def stage_costs(
        self,
        shapes: Shapes,
        recompute: Recompute = Recompute.NONE,
        out: FloatArray | None = None,
    ) -> StageCosts:
        """Costs of micro-batches, see `CostModel`."""
        plain = self.cost.stage_costs(shapes, recompute)
        factors = self.corrections.factors[self.layout, recompute]
        backward_ms, weight_ms = plain.backward_ms, plain.weight_ms
        # Infinite times have no difference, and stay as they are.
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
