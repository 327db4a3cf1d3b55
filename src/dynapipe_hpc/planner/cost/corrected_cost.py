"""Cost model whose times are corrected by factors."""

from dataclasses import dataclass, replace
from enum import IntEnum

import numpy as np

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
