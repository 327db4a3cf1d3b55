"""More recomputation than micro-batches need alone, so that more of them fit at a time."""

from collections.abc import Iterator, Sequence
from dataclasses import replace

import numpy as np

from dynapipe_hpc.data.microbatch import MicroBatch
from dynapipe_hpc.planner.batch.microbatch_costs import microbatch_costs
from dynapipe_hpc.planner.cost.cost_model import CostModel


def more_recompute(
    microbatches: Sequence[MicroBatch], cost: CostModel
) -> Iterator[tuple[MicroBatch, ...]]:
    """The same micro-batches, for each mode of the cost model with at least that mode.

    A micro-batch that takes longer but keeps less memory lets later ones start earlier; only the
    simulation shows which is better. Modes in which some micro-batch was not measured are left out.
    """
    for mode in cost.recompute_modes:
        changed = tuple(replace(m, recompute=max(m.recompute, mode)) for m in microbatches)
        if np.isfinite(microbatch_costs(changed, cost).work_ms).all():
            yield changed
