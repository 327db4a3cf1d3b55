import numpy as np
import pytest
from tests.examples.equal_shares import equal_shares
from tests.examples.measured_layers import SHAPE, T5_SHAPE

from dynapipe_hpc.data.microbatch import Recompute
from dynapipe_hpc.plan.cluster import Cluster
from dynapipe_hpc.planner.batch.longest_sample import longest_row
from dynapipe_hpc.planner.batch.memory import activation_room_bytes, fits
from dynapipe_hpc.planner.cost.analytic import analytic_cost
from dynapipe_hpc.planner.cost.config import AnalyticConfig
from dynapipe_hpc.planner.cost.cost_model import CostModel, Shapes

CONFIG = AnalyticConfig(recompute=("none", "full"))


def fits_alone(cost: CostModel, cluster: Cluster, size: tuple[int, int]) -> bool:
    costs = cost.stage_costs(Shapes.padded(*np.array([[1], [size[0]], [size[1]]])), Recompute.NONE)
    return bool(fits(costs, activation_room_bytes(cost, cluster))[0])


@pytest.mark.parametrize("memory_bytes", [250_000, 400_000])
def test_the_longest_row_fits_and_the_next_does_not(memory_bytes: int) -> None:
    cluster = Cluster(n_stages=2, device_memory_bytes=memory_bytes)
    cost = analytic_cost(SHAPE, equal_shares(SHAPE, cluster), cluster, CONFIG)
    longest = longest_row(cost, cluster, Recompute.NONE, 1024)
    assert 0 < longest < 1024
    assert fits_alone(cost, cluster, (longest, 0))
    assert not fits_alone(cost, cluster, (longest + 8, 0))


def test_one_side_leaves_room_for_the_other() -> None:
    cluster = Cluster(n_stages=2, device_memory_bytes=1_850_000)
    cost = analytic_cost(T5_SHAPE, equal_shares(T5_SHAPE, cluster), cluster, CONFIG)
    inputs = [longest_row(cost, cluster, Recompute.NONE, 1024, other_tokens=n) for n in (8, 200)]
    assert 1024 > inputs[0] > inputs[1] > 0
    targets = longest_row(
        cost, cluster, Recompute.NONE, 1024, side="target_tokens", other_tokens=inputs[1]
    )
    assert 200 <= targets < 1024
    assert fits_alone(cost, cluster, (inputs[1], targets))
    assert not fits_alone(cost, cluster, (inputs[1], targets + 8))
