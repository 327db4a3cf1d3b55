import numpy as np
import pytest

from dynapipe_hpc.models.gpt import GptStage
from dynapipe_hpc.models.shards import OneShard
from dynapipe_hpc.plan.cluster import Cluster
from dynapipe_hpc.plan.model_shape import ModelShape
from dynapipe_hpc.planner.cost.analytic import AnalyticCost
from dynapipe_hpc.planner.cost.config import AnalyticConfig
from dynapipe_hpc.planner.cost.cost_model import Shapes, StageCosts
from dynapipe_hpc.planner.cost.stage_parts import EMBEDDING, HEAD, LAYER, parameters_of

SHAPE = ModelShape(
    n_layers=6, hidden_size=8, n_heads=2, ffn_size=32, vocab_size=50, max_tokens=1024
)
THREE_STAGES = Cluster(n_stages=3, device_memory_bytes=10**9)
# Moving is free and launching almost, so that computing shows.
COMPUTE = AnalyticConfig(flops_per_ms=1.0, memory_bytes_per_ms=1e30, launch_ms=1e-9)


def costs_of(config: AnalyticConfig, n_rows: int, row_tokens: int) -> StageCosts:
    model = AnalyticCost(SHAPE, THREE_STAGES, config)
    return model.stage_costs(Shapes.of_rows(np.array([n_rows]), np.array([row_tokens])))


def test_it_says_that_it_is_an_estimate() -> None:
    assert "estimated" in AnalyticCost(SHAPE, THREE_STAGES, COMPUTE).description


def test_computing_takes_operations_over_rate() -> None:
    n_tokens, layer = 3 * 10, 8 * 64 + 4 * 8 * 32 + 4 * 8 * 10
    costs = costs_of(COMPUTE, 3, 10)
    assert costs.forward_ms[0, 1] == pytest.approx(2 * n_tokens * layer)
    assert costs.forward_ms[0, 2] == pytest.approx(n_tokens * (2 * layer + 2 * 8 * 50))
    np.testing.assert_array_equal(costs.backward_ms, 2 * costs.forward_ms)


def test_a_tiny_micro_batch_takes_the_launch_of_every_layer() -> None:
    config = AnalyticConfig(flops_per_ms=1e30, memory_bytes_per_ms=1e30, launch_ms=0.5)
    assert costs_of(config, 1, 1).forward_ms.tolist() == [[1.5, 1.0, 1.5]]


def test_with_slow_memory_moving_the_weights_takes_the_time() -> None:
    config = AnalyticConfig(flops_per_ms=1e30, memory_bytes_per_ms=1.0, launch_ms=1e-9)
    layer_bytes = 4 * (12 * 64 + 13 * 8)
    moved_bytes = 4 * (8 * 8 + 2 * 32 + 8 + 32)
    assert costs_of(config, 1, 1).forward_ms[0, 1] == pytest.approx(2 * (layer_bytes + moved_bytes))


def test_memory_grows_with_tokens_and_the_head_keeps_logits() -> None:
    costs = costs_of(COMPUTE, 2, 16)
    layers = 2 * 4 * (8 * 8 + 2 * 32)
    assert costs.stored_bytes.tolist() == [[32 * layers, 32 * layers, 32 * (layers + 64 + 200)]]
    assert costs.forward_transient_bytes.tolist() == [[32 * 160, 32 * 160, 32 * 200]]
    assert costs.boundary_bytes[0].tolist() == [32 * 8 * 4] * (costs.n_stages - 1) + [0]


def test_static_memory_counts_every_parameter_of_the_model() -> None:
    model = AnalyticCost(SHAPE, THREE_STAGES, COMPUTE)
    layer = 4 * (64 + 8) + 2 * 8 * 32 + 32 + 8 + 4 * 8
    everything = 6 * layer + (50 + 1024) * 8 + 50 * 8 + 2 * 8
    assert model.static_bytes.sum() == 4 * 4 * everything


def test_a_shard_computes_and_keeps_its_part_and_adds_up_with_the_others() -> None:
    shards = THREE_STAGES.model_copy(update={"n_shards": 2})
    sizes = Shapes.of_rows(np.array([3]), np.array([10]))
    rate = COMPUTE.reduction_bytes_per_ms
    whole = AnalyticCost(SHAPE, THREE_STAGES, COMPUTE).stage_costs(sizes)
    half = AnalyticCost(SHAPE, shards, COMPUTE).stage_costs(sizes)
    sums_ms = 2 * 2 * 30 * 8 * 4 / rate  # two of each layer
    assert half.forward_ms[0, 1] == pytest.approx(whole.forward_ms[0, 1] / 2 + sums_ms)
    assert half.stored_bytes[0, 1] == 30 * 2 * 4 * (4 * 8 + 4 * 4 + 2 * 16)
    assert half.boundary_bytes.tolist() == whole.boundary_bytes.tolist()


@pytest.mark.parametrize("n_shards", [1, 2])
def test_parameters_of_a_shard_are_those_of_the_model(n_shards: int) -> None:
    shape = SHAPE.model_copy(update={"n_layers": 1})
    stage = GptStage(shape, range(1), first=True, last=True, shards=Part(n_shards))
    held = {name: p.numel() for name, p in stage.named_parameters()}
    expected = parameters_of(shape, n_shards)
    for kind, prefix in ((EMBEDDING, "embedding"), (LAYER, "layers"), (HEAD, "head")):
        assert expected[kind] == sum(n for name, n in held.items() if name.startswith(prefix))


class Part(OneShard):
    """Of a number of shards, none of which computes."""

    def __init__(self, n_shards: int) -> None:
        self.n_shards = n_shards


def test_replicas_add_the_reduction_of_gradients_to_the_update() -> None:
    alone = AnalyticCost(SHAPE, THREE_STAGES, COMPUTE).update_ms
    two = THREE_STAGES.model_copy(update={"n_replicas": 2})
    assert AnalyticCost(SHAPE, two, COMPUTE).update_ms > alone
