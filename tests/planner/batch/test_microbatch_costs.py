from pathlib import Path

import numpy as np
from tests.examples.equal_shares import equal_shares
from tests.examples.measured_layers import SHAPE, linear_table, with_packed

from dynapipe_hpc.data.microbatch import PackedRow, PaddedRows
from dynapipe_hpc.plan.cluster import Cluster
from dynapipe_hpc.planner.batch.microbatch_costs import microbatch_costs
from dynapipe_hpc.planner.cost.config import ProfiledConfig
from dynapipe_hpc.planner.cost.profiled import profiled_cost


def test_every_micro_batch_costs_what_its_own_layout_costs() -> None:
    cluster = Cluster(n_stages=1, device_memory_bytes=10**9)
    table, config = with_packed(linear_table(), 0.5), ProfiledConfig(path=Path("costs.h5"))
    cost = profiled_cost(table, SHAPE, equal_shares(SHAPE, cluster), cluster, config=config)
    packed = PackedRow((3, 4), 64, offsets=(0, 32, 64))
    padded = PaddedRows((1, 2), 32)
    costs = microbatch_costs([packed, padded, packed], cost)
    assert np.all(costs.work_ms[[0, 2]] == 0.5 * costs.work_ms[1])
