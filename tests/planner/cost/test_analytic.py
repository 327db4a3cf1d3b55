import numpy as np
import pytest
from tests.examples.decoder_shapes import decoder_shapes
from tests.examples.equal_shares import equal_shares
from tests.examples.measured_layers import SHAPE, T5_SHAPE

from dynapipe_hpc.data.microbatch import Recompute
from dynapipe_hpc.plan.cluster import Cluster
from dynapipe_hpc.planner.cost.analytic import analytic_cost, layer_estimates
from dynapipe_hpc.planner.cost.config import AnalyticConfig
from dynapipe_hpc.planner.cost.cost_model import StageCosts

THREE_STAGES = Cluster(n_stages=3, device_memory_bytes=10**9)
EQUAL = equal_shares(SHAPE, THREE_STAGES)
# Moving is free and launching almost, so that computing shows.
COMPUTE = AnalyticConfig(flops_per_ms=1.0, memory_bytes_per_ms=1e30, launch_ms=1e-9)


def costs_of(config: AnalyticConfig, n_rows: int, row_tokens: int) -> StageCosts:
    model = analytic_cost(SHAPE, EQUAL, THREE_STAGES, config)
    return model.stage_costs(decoder_shapes(np.array([n_rows]), np.array([row_tokens])))


def test_computing_takes_operations_over_rate() -> None:
    n_tokens, layer = 3 * 10, 8 * 64 + 4 * 8 * 32 + 4 * 8 * 10
    costs = costs_of(COMPUTE, 3, 10)
    assert costs.forward_ms[0, 1] == pytest.approx(2 * n_tokens * layer)
    assert costs.forward_ms[0, 2] == pytest.approx(n_tokens * (2 * layer + 2 * 8 * 50))
    logits = n_tokens * 2 * 8 * 50  # which the backward pass computes again
    expected = [2 * costs.forward_ms[0, s] + logits * (s == 2) for s in range(3)]
    assert costs.backward_ms[0].tolist() == pytest.approx(expected)


def test_the_host_launches_a_layer_while_kernels_run() -> None:
    computed = costs_of(COMPUTE, 3, 10)
    launched = costs_of(COMPUTE.model_copy(update={"launch_ms": 4.0}), 3, 10)
    # Two layers, or one and an end, whose kernels begin and end below their rates.
    assert (launched.forward_ms - computed.forward_ms)[0, 1] == pytest.approx(2 * 1.0)
    assert (launched.backward_ms - computed.backward_ms)[0, 1] == pytest.approx(2 * 2.0)


def test_static_memory_counts_every_parameter_of_the_model() -> None:
    model = analytic_cost(SHAPE, EQUAL, THREE_STAGES, COMPUTE)
    layer = 4 * (64 + 8) + 2 * 8 * 32 + 32 + 8 + 4 * 8
    everything = 6 * layer + (50 + 1024) * 8 + 50 * 8 + 2 * 8
    assert model.static_bytes.sum() == 4 * 4 * everything


def test_a_shard_computes_and_keeps_its_part_and_adds_up_with_the_others() -> None:
    shards = THREE_STAGES.model_copy(update={"n_shards": 2})
    sizes = decoder_shapes(np.array([3]), np.array([10]))
    rate = COMPUTE.reduction_bytes_per_ms
    whole = analytic_cost(SHAPE, EQUAL, THREE_STAGES, COMPUTE).stage_costs(sizes)
    half = analytic_cost(SHAPE, EQUAL, shards, COMPUTE).stage_costs(sizes)
    sums_ms = 2 * 2 * 30 * 8 * 4 / rate  # two of each layer
    assert half.forward_ms[0, 1] == pytest.approx(whole.forward_ms[0, 1] / 2 + sums_ms)
    assert half.stored_bytes[0, 1] == 30 * 2 * 4 * (4 * 8 + 4 * 4 + 2 * 16)
    assert half.boundary_bytes.tolist() == whole.boundary_bytes.tolist()
    spread = shards.model_copy(update={"sequence_parallel": True})
    parts = analytic_cost(SHAPE, EQUAL, spread, COMPUTE).stage_costs(sizes)
    assert parts.boundary_bytes[0].tolist() == [15 * 8 * 4] * 2 + [0]


def test_the_second_half_of_a_split_pass_writes_the_gradients_that_waited() -> None:
    maps, inner = 4 * 8 * 8, 2 * 8 * 32
    for mode, n in ((Recompute.NONE, maps + inner), (Recompute.SELECTIVE, inner)):
        layer = layer_estimates(SHAPE.parts(), 8, 4, recompute=mode)["layer"]
        assert layer.own_bytes[1] == 4 * n
    both = layer_estimates(T5_SHAPE.parts(), 8, 4)
    maps, first = 4 * 8 * 32, 8 * 32  # a ReLU leaves room for one of its maps
    assert both["encoder"].own_bytes[1] == 4 * (maps + first)
    assert both["decoder"].own_bytes[1] == 4 * (2 * maps + first)


def test_only_replicas_reduce_gradients() -> None:
    alone = analytic_cost(SHAPE, EQUAL, THREE_STAGES, COMPUTE)
    two = THREE_STAGES.model_copy(update={"n_replicas": 2})
    both = analytic_cost(SHAPE, EQUAL, two, COMPUTE)
    assert alone.reduce_ms.tolist() == [0, 0, 0]
    assert (both.reduce_ms > 0).all()
    assert both.reduce_ms.argmax() == both.static_bytes.argmax()
    assert both.step_ms == alone.step_ms
