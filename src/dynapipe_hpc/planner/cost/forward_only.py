"""Cost model of forward passes that keep nothing."""

from dataclasses import replace

import numpy as np

from dynapipe_hpc.data.microbatch import Layout, Recompute
from dynapipe_hpc.planner.cost.cost_model import (
    Cost,
    CostModel,
    FloatArray,
    Shapes,
    SliceMemory,
    StageCosts,
)


def forward_costs(cost: CostModel) -> CostModel:
    """The costs of evaluation: forward passes, without gradients and updates.

    Memory is an upper bound: what training keeps of a forward pass where it recomputes the most,
    and needs while it runs, what it will recompute included. Nothing is kept after the pass: keys
    and values of slices are transient.
    """
    mode, kept = cost.recompute_modes[-1], cost.slice_memory.kept

    def price(shapes: Shapes, layout: Layout, _: Recompute, out: FloatArray | None) -> StageCosts:
        trained = cost.price(shapes, layout, mode, None)
        nothing = np.zeros_like(trained.forward_ms)
        return StageCosts.from_times(
            forward_ms=trained.forward_ms,
            backward_ms=nothing,
            weight_ms=nothing,
            splitting_ms=nothing,
            boundary_bytes=trained.boundary_bytes,
            stored_bytes=nothing,
            forward_transient_bytes=trained.stored_bytes + trained.forward_transient_bytes,
            backward_transient_bytes=nothing,
            out=out,
        )

    return replace(
        cost,
        price=price,
        bound=cost.bound and forward_costs(cost.monotone).price,
        recompute_modes=(Recompute.NONE,),
        reduce_ms=np.zeros_like(cost.reduce_ms),
        step_ms=0.0,
        slice_memory=SliceMemory.none(len(kept))._replace(kept=kept),
        cache_cost=Cost.FORWARD_TRANSIENT_BYTES,
        kind_of_stage=None,
    )
