"""Estimated costs, also of adapters, and the tokens and pairs that they count."""

from dataclasses import replace
from pathlib import Path
from typing import Literal

import numpy as np
import pytest
from tests.examples.equal_shares import equal_shares
from tests.examples.linear_cost import decoder_shapes
from tests.examples.measured_layers import SHAPE, T5_SHAPE, linear_table

from dynapipe_hpc.architecture.lora import Lora
from dynapipe_hpc.architecture.model_shape import ModelShape
from dynapipe_hpc.architecture.part import LAYER, Amount, Side
from dynapipe_hpc.data.errors import InputError
from dynapipe_hpc.data.microbatch import Recompute
from dynapipe_hpc.plan.cluster import Cluster
from dynapipe_hpc.planner.cost.analytic import analytic_cost, layer_estimates
from dynapipe_hpc.planner.cost.config import AnalyticConfig, ProfiledConfig
from dynapipe_hpc.planner.cost.cost_model import Shapes, StageCosts
from dynapipe_hpc.planner.cost.model_state import state_factor_of_rank
from dynapipe_hpc.planner.cost.profiled import profiled_cost
from dynapipe_hpc.planner.cost.stage_parts import Tokens
from dynapipe_hpc.planner.cost.table.profile_table import check_model, fingerprint_of

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


CONFIG = ProfiledConfig(path=Path("costs.h5"))


def adapted(shape: ModelShape, **lora: object) -> ModelShape:
    return shape.model_copy(update={"lora": Lora.model_validate(lora)})


def test_of_measured_weights_only_adapters_have_a_state() -> None:
    shape = adapted(SHAPE, rank=2)
    table = replace(linear_table(), model=fingerprint_of(shape))
    static = profiled_cost(
        table, shape, equal_shares(shape, THREE_STAGES), THREE_STAGES, config=CONFIG
    ).static_bytes
    layer = shape.parts()[LAYER]
    share = (layer.parameters - layer.frozen) / layer.parameters
    n_bytes = 100.0 * shape.n_layers / 3  # of the layers of the stage in the middle
    expected = n_bytes * (1 - share + share * table.state_factor)
    expected += 100.0 * table.state_factor  # of what a stage has besides its layers
    assert static[1] == pytest.approx(expected)


@pytest.mark.parametrize("other", [SHAPE, adapted(SHAPE, rank=4), adapted(SHAPE, targets=["up"])])
def test_costs_with_other_adapters_are_refused(other: ModelShape) -> None:
    measured = fingerprint_of(adapted(SHAPE, rank=8))
    check_model(measured, adapted(SHAPE, rank=8, alpha=1.0), CONFIG.path)
    with pytest.raises(InputError, match="lora is rank 8 of all layers there and "):
        check_model(measured, other, CONFIG.path)


def test_a_backward_pass_beside_frozen_weights_takes_little_more_than_a_forward_pass() -> None:
    wide = SHAPE.model_copy(update={"hidden_size": 4096, "ffn_size": 16384, "n_heads": 32})
    rates = AnalyticConfig(flops_per_ms=1e9, memory_bytes_per_ms=1e12, launch_ms=1e-6)
    ratios = []
    for shape in (wide, adapted(wide, rank=8)):
        costs = analytic_cost(
            shape, equal_shares(shape, THREE_STAGES), THREE_STAGES, rates
        ).stage_costs(decoder_shapes(np.array([4]), np.array([256])))
        ratios.append((costs.backward_ms / costs.forward_ms)[0, 1])
        weight_share = (costs.weight_ms / costs.backward_ms)[0, 1]
    assert ratios[0] == pytest.approx(2)
    assert 1 < ratios[1] < 1.1
    assert 0 < weight_share < 0.02


N_ROWS, WINDOW = 3, 5
SEEN = Amount(per_pair=1, per_far_pair=-1)


def tokens_of(n_tokens: int, window: float = WINDOW) -> Tokens:
    shapes = Shapes.padded(*(np.array([n]) for n in (N_ROWS, n_tokens, 0)))
    return Tokens.from_shapes(Side.INPUTS, shapes, window)


@pytest.mark.parametrize(("begin", "end"), [(0, 4), (0, 9), (3, 4), (3, 12), (5, 9), (40, 47)])
def test_pairs_of_slices_that_a_window_leaves_are_counted_one_by_one(begin: int, end: int) -> None:
    length = begin + end
    shapes = Shapes.padded(*(np.array([n]) for n in ((end - begin) / length, length, 0)))
    tokens = Tokens.from_shapes(Side.INPUTS, shapes, WINDOW)
    n_seen = sum(0 <= query - key < WINDOW for query in range(begin, end) for key in range(end))
    n_diagonal = min(end, WINDOW) - min(begin, WINDOW)
    assert tokens.times(SEEN).item() == pytest.approx(2 * n_seen - n_diagonal)
    assert begin == 0 or tokens.masked_square.tolist() == [0]  # no slice keeps its mask


def test_only_rows_longer_than_a_window_have_a_mask() -> None:
    masked = Amount(per_masked_square=1)
    found = [tokens_of(n).times(masked).item() for n in (WINDOW, WINDOW + 1)]
    assert found == [0, (WINDOW + 1) ** 2]


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
