from typing import Literal

import pytest

from dynapipe_hpc.plan.cluster import Cluster
from dynapipe_hpc.planner.cost.model_state import state_factor_of_rank


@pytest.mark.parametrize(
    ("zero_stage", "n_replicas", "element_bytes", "factor", "expected"),
    [
        (0, 4, 4, 4, 4),
        (1, 1, 4, 4, 4),
        (1, 4, 4, 4, 2 + 2 / 4),  # weights and gradients; a quarter of two moments
        (1, 4, 8, 4, 2 + 2 / 4),
        (1, 2, 2, 9, 3 + 6 / 2),  # float32 gradients; half of float32 weights and moments
        (1, 2, 4, 1, 2),
    ],
)
def test_replicas_share_out_the_state_of_the_optimizer_and_nothing_else(
    zero_stage: Literal[0, 1], n_replicas: int, element_bytes: int, factor: float, expected: float
) -> None:
    cluster = Cluster(n_replicas=n_replicas, device_memory_bytes=1, zero_stage=zero_stage)
    assert state_factor_of_rank(factor, element_bytes, cluster) == expected
