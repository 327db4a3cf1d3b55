import numpy as np

from dynapipe_hpc.plan.cluster import Cluster
from dynapipe_hpc.planner.batch.row_length import RowLengths
from dynapipe_hpc.planner.placement.typical_sizes import typical_sizes

CLUSTER = Cluster(n_replicas=2, n_stages=4, device_memory_bytes=10**9)


def test_half_of_all_tokens_are_in_rows_of_at_most_the_common_length() -> None:
    rows = np.array([8] * 100 + [400, 800])
    many, few = typical_sizes(RowLengths(rows, np.zeros_like(rows)), 32 * 1000, CLUSTER)
    assert [int(side[0]) for side in many.common[:3]] == [2, 400, 0]
    assert [int(side[0]) for side in few.common[:3]] == [10, 400, 0]
    assert [int(side[0]) for side in many.longest[:3]] == [1, 800, 0]
    assert few.longest is many.longest
