import numpy as np
from tests.examples.linear_cost import LinearCost

from dynapipe_hpc.data.microbatch import MicroBatch, Recompute
from dynapipe_hpc.planner.batch.microbatch_costs import microbatch_costs


def test_every_micro_batch_costs_what_its_own_mode_costs() -> None:
    modes = [Recompute.FULL, Recompute.NONE, Recompute.FULL]
    microbatches = [MicroBatch(((i,),), 8 * (i + 1), mode) for i, mode in enumerate(modes)]
    costs = microbatch_costs(microbatches, LinearCost(token_bytes=4.0, recomputes=True))
    assert costs.stored_bytes[:, 0].tolist() == [8.0, 64.0, 24.0]
    assert np.all(costs.backward_ms[[0, 2]] == 2 * costs.forward_ms[[0, 2]])
    assert costs.boundary_bytes.tolist() == [[8, 0], [16, 0], [24, 0]]
