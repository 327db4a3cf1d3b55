import numpy as np
import pytest
from tests.examples.decoder_shapes import decoder_shapes
from tests.examples.equal_shares import equal_shares
from tests.examples.measured_layers import SHAPE, T5_SHAPE

from dynapipe_hpc.architecture.model_shape import ModelShape
from dynapipe_hpc.data.microbatch import Recompute
from dynapipe_hpc.plan.cluster import Cluster
from dynapipe_hpc.planner.cost.analytic import analytic_cost, layer_estimates
from dynapipe_hpc.planner.cost.config import AnalyticConfig
from dynapipe_hpc.planner.cost.cost_model import Shapes, StageCosts

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


def test_a_tiny_micro_batch_takes_the_launch_of_every_layer() -> None:
    config = AnalyticConfig(flops_per_ms=1e30, memory_bytes_per_ms=1e30, launch_ms=0.5)
    assert costs_of(config, 1, 1).forward_ms.tolist() == [[1.5, 1.0, 1.5]]


def test_the_host_launches_a_layer_while_kernels_run() -> None:
    computed = costs_of(COMPUTE, 3, 10)
    launched = costs_of(COMPUTE.model_copy(update={"launch_ms": 4.0}), 3, 10)
    # Two layers, or one and an end, whose kernels begin and end below their rates.
    assert (launched.forward_ms - computed.forward_ms)[0, 1] == pytest.approx(2 * 1.0)
    assert (launched.backward_ms - computed.backward_ms)[0, 1] == pytest.approx(2 * 2.0)


def test_with_slow_memory_moving_the_weights_takes_the_time() -> None:
    config = AnalyticConfig(flops_per_ms=1e30, memory_bytes_per_ms=1.0, launch_ms=1e-9)
    layer_bytes = 4 * (12 * 64 + 13 * 8)
    moved_bytes = 4 * (8 * 8 + 2 * 32 + 8 + 32)
    assert costs_of(config, 1, 1).forward_ms[0, 1] == pytest.approx(2 * (layer_bytes + moved_bytes))


def test_memory_grows_with_tokens_and_the_head_keeps_no_logits() -> None:
    costs = costs_of(COMPUTE, 2, 16)
    layers = 2 * 4 * (8 * 8 + 2 * 32)
    assert costs.stored_bytes.tolist() == [[32 * layers, 32 * layers, 32 * (layers + 64)]]
    assert costs.forward_transient_bytes.tolist() == [[32 * 160, 32 * 160, 32 * 400]]
    weights = [1024 * 8 * 4, 4 * 8 * 32, 50 * 8 * 4]  # the largest, of positions, a map, logits
    assert costs.backward_transient_bytes[0].tolist() == [
        2 * 32 * moved + gradient
        for moved, gradient in zip([8 * 4, 160, 400], weights, strict=True)
    ]
    assert costs.boundary_bytes[0].tolist() == [32 * 8 * 4] * (costs.n_stages - 1) + [0]


def test_the_logits_of_a_large_micro_batch_are_in_chunks() -> None:
    shape = SHAPE.model_copy(update={"vocab_size": 50_000})
    model = analytic_cost(shape, EQUAL, THREE_STAGES, AnalyticConfig(element_bytes=2))
    costs = model.stage_costs(decoder_shapes(np.array([1, 8, 80]), np.array([512] * 3)))
    chunk_bytes = 2**25 * (2 + 4)
    found = costs.forward_transient_bytes[:, 2].tolist()
    assert found == [512 * 50_000 * (2 + 4), chunk_bytes, chunk_bytes]


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


def of_modes(shape: ModelShape, sizes: Shapes) -> dict[str, StageCosts]:
    """The costs of one micro-batch, by mode."""
    config = COMPUTE.model_copy(update={"recompute": ("none", "selective", "full")})
    model = analytic_cost(shape, EQUAL, THREE_STAGES, config)
    return {mode.text: model.stage_costs(sizes, mode) for mode in model.recompute_modes}


def test_what_is_not_kept_is_computed_again() -> None:
    modes = of_modes(SHAPE, decoder_shapes(np.array([2]), np.array([16])))
    tokens, attention, feed_forward = 32, 8 * 64 + 4 * 8 * 16, 4 * 8 * 32
    for mode, repeated, deferred in (
        ("none", 0, 8 * 64 + feed_forward),
        ("selective", attention, feed_forward),
        ("full", attention + feed_forward, 0),
    ):
        costs = modes[mode]
        again_ms = costs.backward_ms - 2 * costs.forward_ms
        assert again_ms[0, 1] == pytest.approx(2 * tokens * repeated)
        assert costs.weight_ms[0, 1] == pytest.approx(2 * tokens * deferred)
    per_layer = {mode: costs.stored_bytes[0, 1] / (2 * tokens * 4) for mode, costs in modes.items()}
    assert per_layer == {"none": 8 * 8 + 2 * 32, "selective": 3 * 8 + 2 * 32, "full": 8}
    kept_less = per_layer["none"] - per_layer["full"]
    needed = {mode: costs.backward_transient_bytes[0, 1] for mode, costs in modes.items()}
    assert needed["full"] - needed["none"] == pytest.approx(tokens * 4 * (kept_less + 8))


def test_the_second_half_of_a_split_pass_writes_the_gradients_that_waited() -> None:
    maps, inner = 4 * 8 * 8, 2 * 8 * 32
    for mode, n in ((Recompute.NONE, maps + inner), (Recompute.SELECTIVE, inner)):
        layer = layer_estimates(SHAPE.parts(), 8, 4, recompute=mode)["layer"]
        assert layer.own_bytes[1] == 4 * n
    both = layer_estimates(T5_SHAPE.parts(), 8, 4)
    maps, first = 4 * 8 * 32, 8 * 32  # a ReLU leaves room for one of its maps
    assert both["encoder"].own_bytes[1] == 4 * (maps + first)
    assert both["decoder"].own_bytes[1] == 4 * (2 * maps + first)


def test_a_decoder_attends_to_both_sides_and_makes_keys_of_the_inputs() -> None:
    costs = of_modes(T5_SHAPE, Shapes.padded(*np.array([[2], [24], [16]])))["none"]
    inputs, targets, h, heads, inner = 2 * 24, 2 * 16, 8, 32, 32
    encoder = inputs * (8 * h * heads + 4 * h * inner + 4 * heads * 24)
    decoder = targets * (12 * h * heads + 4 * h * inner + 4 * heads * (16 + 24))
    decoder += inputs * 4 * h * heads
    head = targets * 2 * h * 50
    assert costs.forward_ms[0, 0] == pytest.approx(2 * encoder + inputs * h)
    assert costs.forward_ms[0, 2] == pytest.approx(2 * decoder + head)
    assert costs.boundary_bytes[0].tolist() == [4 * 8 * 48, 4 * 8 * (48 + 32), 0]


def test_only_replicas_reduce_gradients() -> None:
    alone = analytic_cost(SHAPE, EQUAL, THREE_STAGES, COMPUTE)
    two = THREE_STAGES.model_copy(update={"n_replicas": 2})
    both = analytic_cost(SHAPE, EQUAL, two, COMPUTE)
    assert alone.reduce_ms.tolist() == [0, 0, 0]
    assert (both.reduce_ms > 0).all()
    assert both.reduce_ms.argmax() == both.static_bytes.argmax()
    assert both.step_ms == alone.step_ms
