from pathlib import Path

import numpy as np
from tests.examples.equal_shares import equal_shares
from tests.examples.linear_cost import linear_cost
from tests.examples.measured_layers import SHAPE, linear_table, with_packed

from dynapipe_hpc.data.microbatch import PackedRow, PaddedRows, Recompute
from dynapipe_hpc.plan.cluster import Cluster
from dynapipe_hpc.planner.batch.microbatch_costs import microbatch_costs
from dynapipe_hpc.planner.cost.config import ProfiledConfig
from dynapipe_hpc.planner.cost.profiled import profiled_cost


def test_every_micro_batch_costs_what_its_own_mode_costs() -> None:
    modes = [Recompute.FULL, Recompute.NONE, Recompute.FULL]
    microbatches = [PaddedRows((i,), 8 * (i + 1), mode) for i, mode in enumerate(modes)]
    costs = microbatch_costs(microbatches, linear_cost(token_bytes=4.0, recomputes=True))
    assert costs.stored_bytes[:, 0].tolist() == [8.0, 64.0, 24.0]
    assert np.all(costs.backward_ms[[0, 2]] == 2 * costs.forward_ms[[0, 2]])
    assert costs.boundary_bytes.tolist() == [[8, 0], [16, 0], [24, 0]]


def test_every_micro_batch_costs_what_its_own_layout_costs() -> None:
    cluster = Cluster(n_stages=1, device_memory_bytes=10**9)
    table, config = with_packed(linear_table(), 0.5), ProfiledConfig(path=Path("costs.h5"))
    cost = profiled_cost(table, SHAPE, equal_shares(SHAPE, cluster), cluster, config=config)
    packed = PackedRow((3, 4), 64, offsets=(0, 32, 64))
    padded = PaddedRows((1, 2), 32)
    costs = microbatch_costs([packed, padded, packed], cost)
    assert np.all(costs.work_ms[[0, 2]] == 0.5 * costs.work_ms[1])
