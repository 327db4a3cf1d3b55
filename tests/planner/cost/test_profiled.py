"""Costs from measured tables: of one side and of two, of slices, and of halves of passes."""

import json
import re
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.examples.equal_shares import equal_shares
from tests.examples.linear_cost import decoder_shapes
from tests.examples.measured_layers import (
    ROW_TOKENS,
    ROWS,
    SHAPE,
    T5_SHAPE,
    linear_grid,
    linear_layer,
    linear_t5_table,
    linear_table,
    with_packed,
)
from tests.examples.published import LINK, Family, Published, published_plans, static_share

from dynapipe_hpc.architecture.decoder import GptShape
from dynapipe_hpc.architecture.model_shape import ModelShape
from dynapipe_hpc.architecture.placement import Placement
from dynapipe_hpc.architecture.transformers import TransformersShape
from dynapipe_hpc.data.errors import InputError
from dynapipe_hpc.data.microbatch import Layout, PackedRow, Recompute, Slice
from dynapipe_hpc.plan.cluster import Cluster
from dynapipe_hpc.planner.batch.memory import activation_room_bytes
from dynapipe_hpc.planner.batch.packed_shapes import shapes_of
from dynapipe_hpc.planner.cost.config import ProfiledConfig
from dynapipe_hpc.planner.cost.cost_model import (
    CostModel,
    FloatArray,
    KnownRows,
    Shapes,
    StageCosts,
)
from dynapipe_hpc.planner.cost.interpolate import make_monotone
from dynapipe_hpc.planner.cost.measured_axes import NO_TARGET, Axes, on_three_axes
from dynapipe_hpc.planner.cost.profiled import profiled_cost
from dynapipe_hpc.planner.cost.slice_costs import near_pairs
from dynapipe_hpc.planner.cost.stage_parts import boundary_sizes
from dynapipe_hpc.planner.cost.table.profile_file import read_table, write_table
from dynapipe_hpc.planner.cost.table.profile_table import (
    LayerProfile,
    check_model,
    describe_table,
    fingerprint_of,
)
from dynapipe_hpc.planner.cost.weight_gradients import split_times
from dynapipe_hpc.planner.schedule.rules import RULES
from dynapipe_hpc.planner.schedule.schedule_rule import ScheduleRule
from dynapipe_hpc.planner.schedule.simulate import Timeline, simulate

CONFIG = ProfiledConfig(path=Path("costs.h5"))
THREE_STAGES = Cluster(n_stages=3, device_memory_bytes=10**9)
EQUAL = equal_shares(SHAPE, THREE_STAGES)


def costs_of(n_rows: int, row_tokens: int, cost: CostModel | None = None) -> StageCosts:
    model = cost or profiled_cost(linear_table(), SHAPE, EQUAL, THREE_STAGES, config=CONFIG)
    return model.stage_costs(decoder_shapes(np.array([n_rows]), np.array([row_tokens])))


def test_stages_add_up_their_layers_with_embedding_first_and_head_last() -> None:
    costs = costs_of(2, 32)
    assert costs.forward_ms.tolist() == [[64 * 2.5, 64 * 2.0, 64 * 5.0]]
    assert costs.backward_ms.tolist() == [[64 * 5.0, 64 * 4.0, 64 * 10.0]]
    assert costs.stored_bytes.tolist() == [[640 * 2.5, 640 * 2.0, 640 * 5.0]]


def test_stages_that_hold_the_same_and_hand_over_as_much_are_of_one_kind() -> None:
    deep, stages = (
        SHAPE.model_copy(update={"n_layers": 10}),
        Cluster(n_stages=5, device_memory_bytes=10**9),
    )
    cost = profiled_cost(linear_table(), deep, equal_shares(deep, stages), stages, config=CONFIG)
    assert cost.kind_of_stage is not None
    first, *middle, last = cost.kind_of_stage.tolist()
    assert len(set(middle)) == 1
    assert len({first, *middle, last}) == 3
    costs = costs_of(2, 32, cost)
    assert costs.of_kinds.shape[1] == 3
    assert costs.forward_ms.tolist() == [[64 * 2.5, *[64 * 2.0] * 3, 64 * 5.0]]


def test_packed_rows_cost_what_was_measured_of_packed_rows() -> None:
    table = with_packed(linear_table(), 0.75)
    cost = profiled_cost(table, SHAPE, EQUAL, THREE_STAGES, config=CONFIG)
    padded, packed = costs_of(3, 20, cost), costs_of(3, 20, cost.of_layout(Layout.PACKED))
    for name in ("forward_ms", "backward_ms", "stored_bytes", "backward_transient_bytes"):
        expected = 0.75 * getattr(padded, name)
        np.testing.assert_allclose(getattr(packed, name), expected, rtol=1e-12)
    assert packed.boundary_bytes.tolist() == padded.boundary_bytes.tolist()
    assert cost.describe().startswith("measured in padded and packed rows, from costs.h5;")
    again = cost.of_layout(Layout.PACKED).of_layout(Layout.PADDED)
    assert costs_of(3, 20, again).table.tolist() == padded.table.tolist()


def test_rows_are_known_up_to_what_was_measured_in_every_layout() -> None:
    padded, doubled = linear_table(), with_packed(linear_table(), 2.0).layers
    packed = {
        key: replace(layer, axes=(2 * layer.axes[0], 3 * layer.axes[1]))
        for key, layer in doubled.items()
        if key.layout == Layout.PACKED.text
    }
    table = replace(padded, layers={**padded.layers, **packed})
    cost = profiled_cost(table, SHAPE, EQUAL, THREE_STAGES, config=CONFIG)
    assert cost.known_rows == KnownRows([1, 2, 4, 8, 16], 8, 48, 64)
    alone = profiled_cost(padded, SHAPE, EQUAL, THREE_STAGES, config=CONFIG)
    assert alone.known_rows == KnownRows([1, 2, 4, 8], 8, 16, 64)
    # Measured for 16 and 96 instead of 8 and 32, and twice as much.
    of_packed = costs_of(16, 96, cost.of_layout(Layout.PACKED)).forward_ms
    assert (of_packed == 2 * costs_of(8, 32, alone).forward_ms).all()


def test_where_packed_rows_were_measured_in_some_modes_only_padded_ones_are_looked_up() -> None:
    packed, full = with_packed(linear_table(), 0.75), linear_table("full")
    table = replace(packed, layers={**packed.layers, **full.layers})
    config = CONFIG.model_copy(update={"recompute": ("none", "full")})
    cost = profiled_cost(table, SHAPE, EQUAL, THREE_STAGES, config=config)
    looked_up = costs_of(3, 20, cost.of_layout(Layout.PACKED))
    assert looked_up.table.tolist() == costs_of(3, 20, cost).table.tolist()


@pytest.mark.parametrize(("n_replicas", "per_byte"), [(1, 0.0), (2, 0.5)])
def test_every_stage_reduces_its_own_weights_and_waits_for_the_step_of_the_largest(
    n_replicas: int, per_byte: float
) -> None:
    cluster = THREE_STAGES.model_copy(update={"n_replicas": n_replicas})
    cost = profiled_cost(linear_table(), SHAPE, EQUAL, cluster, config=CONFIG)
    assert cost.reduce_ms.tolist() == [400 * per_byte, 300 * per_byte, 400 * per_byte]
    assert cost.step_ms == 400 * 0.25


def repaired_share(cost: CostModel) -> float:
    percent = re.search(r"noise repaired in ([0-9.]+) %", cost.describe())
    assert percent
    return float(percent[1]) / 100


def test_noise_is_repaired_and_its_share_told() -> None:
    noisy = linear_grid(1.0)
    noisy[1, 1] = 10.0
    layer = replace(linear_layer(1.0), forward_ms=noisy)
    cost = profiled_cost(linear_table(layer=layer), SHAPE, EQUAL, THREE_STAGES, config=CONFIG)
    assert 0 < repaired_share(cost) < 0.05
    quiet = profiled_cost(linear_table(), SHAPE, EQUAL, THREE_STAGES, config=CONFIG)
    assert repaired_share(quiet) == 0


def test_a_table_of_another_decoder_of_transformers_names_the_settings_that_differ(
    tmp_path: Path,
) -> None:
    settings = {"hidden_size": 8, "rope_theta": 1e4, "sliding_window": None}
    here = decoder_of({**settings, "rope_theta": 1e6, "tie": True})
    table = replace(linear_table(), model=fingerprint_of(decoder_of(settings)))
    write_table(table, tmp_path / "costs.h5")
    measured = read_table(tmp_path / "costs.h5").model
    check_model(measured, decoder_of(dict(reversed(settings.items()))), Path("costs.h5"))
    told = (
        r"settings: rope_theta is 10000\.0 there and 1000000\.0 in \[model\], "
        r"settings: tie is None there and True in \[model\]"
    )
    with pytest.raises(InputError, match=f"costs of another model: {told}; measure this one"):
        check_model(measured, here, Path("costs.h5"))
    older = {name: value for name, value in measured.items() if name != "settings"}
    with pytest.raises(InputError, match=r"another model: settings .* are not those in"):
        check_model(older, here, Path("costs.h5"))
    with pytest.raises(InputError, match="family is transformers there and gpt"):
        check_model(measured, SHAPE, Path("costs.h5"))
    assert "rope_theta" not in describe_table(table, Path("costs.h5"))


def decoder_of(settings: dict[str, Any]) -> TransformersShape:
    return TransformersShape(
        model_type="small",
        n_layers=1,
        hidden_size=8,
        n_heads=2,
        ffn_size=16,
        vocab_size=50,
        max_tokens=16,
        settings=json.dumps(settings),
        tied_head=True,
        tensors={"model.embed.weight": (50, 8), "model.layers.*.map.weight": (8, 8)},
    )


def test_costs_with_dropout_are_of_any_rate_but_zero() -> None:
    shapes = [SHAPE.model_copy(update={"dropout": rate}) for rate in (0.1, 0.2, 0.0)]
    for shape in shapes[:2]:
        check_model(fingerprint_of(shapes[0]), shape, Path("costs.h5"))
    check_model(fingerprint_of(SHAPE), shapes[2], Path("costs.h5"))
    with pytest.raises(InputError, match=r"has_dropout is None there and True in \[model\]"):
        check_model(fingerprint_of(SHAPE), shapes[0], Path("costs.h5"))


PLACEMENT = Placement((2, 2, 2))  # encoder; its end and the decoder's beginning; decoder
COST = profiled_cost(linear_t5_table(), T5_SHAPE, PLACEMENT, THREE_STAGES, config=CONFIG)


def test_equal_rows_cost_what_they_cost_with_both_sides_together() -> None:
    shapes = Shapes.padded(*np.array([[1.5, 4, 2], [20, 64, 33.3], [16, 25, 64]]))
    apart = COST.of_layout(Layout.PACKED).stage_costs(shapes)
    np.testing.assert_allclose(apart.table, COST.stage_costs(shapes).table, rtol=1e-12)
    below = COST.monotone.of_layout(Layout.PACKED).stage_costs(shapes)
    assert (below.table <= apart.table * (1 + 1e-12)).all()


def test_what_no_row_can_have_is_infeasible_on_the_stages_of_its_side() -> None:
    # Eight rows of inputs of 40 tokens were not measured, two of 160 are longer than any.
    for shape, too_large in (
        ((1, 64, 16, 8), False),
        ((4, 64, 64, 4), False),
        ((8, 40, 16, 8), True),
    ):
        shapes = Shapes(*(np.array([float(size)]) for size in shape))
        costs = COST.of_layout(Layout.PACKED).stage_costs(shapes)
        assert np.isinf(costs.forward_ms[0, 0]) == too_large


def on(n_stages: int) -> Placement:
    return Placement.equal_shares(6, n_stages)


def t5_cost(n_stages: int) -> CostModel:
    cluster = Cluster(n_stages=n_stages, device_memory_bytes=10**9)
    return profiled_cost(linear_t5_table(), T5_SHAPE, on(cluster.n_stages), cluster, config=CONFIG)


def one(n_rows: int, row_tokens: int, target_tokens: int) -> Shapes:
    return Shapes.padded(*np.array([[n_rows], [row_tokens], [target_tokens]]))


def test_from_the_first_decoder_layer_on_the_pair_is_handed_over() -> None:
    assert boundary_sizes(T5_SHAPE, on(4)).tolist() == [[8, 0], [8, 0], [8, 8], [0, 0]]
    assert boundary_sizes(T5_SHAPE, on(3)).tolist() == [[8, 0], [8, 8], [0, 0]]
    assert boundary_sizes(SHAPE, on(3)).tolist() == [[8, 0], [8, 0], [0, 0]]
    assert boundary_sizes(T5_SHAPE, on(3), 4).tolist() == [[2, 0], [2, 2], [0, 0]]
    costs = t5_cost(4).stage_costs(one(2, 24, 16))
    assert costs.boundary_bytes[0].tolist() == [4 * 8 * 48, 4 * 8 * 48, 4 * 8 * 80, 0]


def test_a_stage_costs_what_its_side_has_to_do() -> None:
    costs = t5_cost(4).stage_costs(one(2, 24, 20))
    # Encoder layers 48 ms each, decoder layers 88, embeddings half of the inputs, head 3 x 40;
    # a quarter of a layer on top for what the layers of a side share.
    forward_ms = [60 + 24, 108, 198 + 24, 110 + 120]
    assert costs.forward_ms[0].tolist() == pytest.approx(forward_ms)
    assert costs.backward_ms[0].tolist() == pytest.approx([2 * ms for ms in forward_ms])


RULE_OF = {"wait-free-cyclic": RULES["cyclic"], "1F1B": RULES["1f1b"]}


def rerun(batch: Published, replica: Mapping[str, Any]) -> Timeline:
    sizes = np.array(replica["shapes"]).T.copy()
    costs = batch.cost.stage_costs(Shapes.padded(*sizes), Recompute.from_text(replica["rc"]))
    rule = RULE_OF[replica["schedule"]]
    timeline = scheduled(batch, rule, costs, np.full(costs.n_stages, np.inf))
    if timeline.peak_bytes.max() <= batch.cluster.device_memory_bytes:
        return timeline
    return scheduled(batch, rule, costs, activation_room_bytes(batch.cost, batch.cluster))


def scheduled(
    batch: Published, rule: ScheduleRule, costs: StageCosts, room_bytes: FloatArray
) -> Timeline:
    schedule = rule(costs, room_bytes, LINK)
    return simulate(schedule, costs, LINK, batch.cost.static_bytes)


@pytest.mark.parametrize(
    ("family", "n_plans", "rel"),
    # A T5 shares its embedding here, and theirs has one for each side.
    [("gpt", 36, 1e-4), ("t5", 2, 5e-3)],
)
def test_published_plans_take_as_long_and_need_as_much_memory_here(
    family: Family, n_plans: int, rel: float
) -> None:
    plans = [
        (batch, replica) for batch in published_plans(family) for replica in batch.plan["replicas"]
    ]
    assert len(plans) == n_plans
    for batch, replica in plans:
        timeline = rerun(batch, replica)
        assert timeline.makespan_ms == pytest.approx(replica["makespan_ms"], rel=2e-6)
        less = (1 - static_share(batch.cluster)) * batch.cost.static_bytes
        peak_mb = (timeline.peak_bytes - less).max() / 1e6
        assert peak_mb == pytest.approx(replica["peak_mem_mb"], rel=rel)


SLICE = PackedRow((0,), 32, (0, 32), slice=Slice(64, 96, 128))


class WindowedShape(GptShape):
    """A model that says that it has windows."""

    @property
    def window(self) -> float:
        return 40.0


def layer_costs_of(layer: LayerProfile, *rows: PackedRow, shape: ModelShape = SHAPE) -> StageCosts:
    cost = profiled_cost(linear_table(layer=layer), shape, EQUAL, THREE_STAGES, config=CONFIG)
    return cost.stage_costs(shapes_of(rows, cost.known_rows))


def test_a_slice_takes_what_a_row_does_and_its_pairs_with_what_is_before_it() -> None:
    row = PackedRow((0,), 32, (0, 32))
    layer = replace(linear_layer(1.0), pair_ms=np.array([0.25, 0.5]))
    of_slice, of_row = layer_costs_of(layer, SLICE), layer_costs_of(layer, row)
    n_pairs, n_layers = 32 * 64, 2
    more_forward = of_slice.forward_ms - of_row.forward_ms
    more_backward = of_slice.backward_ms - of_row.backward_ms
    np.testing.assert_allclose(more_forward, [[n_layers * n_pairs * 0.25] * 3], rtol=1e-12)
    np.testing.assert_allclose(more_backward, [[n_layers * n_pairs * 0.5] * 3], rtol=1e-12)
    for name in ("stored_bytes", "forward_transient_bytes", "boundary_bytes"):
        np.testing.assert_allclose(getattr(of_slice, name), getattr(of_row, name), rtol=1e-12)


def test_pairs_within_windows_take_what_was_measured_of_them() -> None:
    both = replace(
        linear_layer(1.0), pair_ms=np.array([0.25, 0.5]), near_pair_ms=np.array([1.0, 3.0])
    )
    full = replace(both, near_pair_ms=None)
    shape = WindowedShape.model_validate(SHAPE.model_dump())
    of_both, of_full = (
        layer_costs_of(both, SLICE, shape=shape),
        layer_costs_of(full, SLICE, shape=shape),
    )
    n_near = sum(0 <= query - key < 40 for query in range(64, 96) for key in range(64))
    more_forward = of_both.forward_ms - of_full.forward_ms
    more_backward = of_both.backward_ms - of_full.backward_ms
    np.testing.assert_allclose(more_forward, [[2 * n_near * 1.0] * 3], rtol=1e-12)
    np.testing.assert_allclose(more_backward, [[2 * n_near * 3.0] * 3], rtol=1e-12)


@pytest.mark.parametrize("window", [1, 2, 7, 30, 31, 200, np.inf])
@pytest.mark.parametrize(("tokens", "before"), [(1, 0), (1, 29), (30, 0), (30, 3), (6, 30)])
def test_pairs_within_windows_are_counted_one_by_one(
    window: float, tokens: int, before: int
) -> None:
    seen = [
        query - key < window for query in range(before, before + tokens) for key in range(before)
    ]
    found = near_pairs(np.array([float(tokens)]), np.array([float(before)]), window)
    assert found.tolist() == [sum(seen)]


AXES: Axes = (ROWS, ROW_TOKENS, NO_TARGET)
LAYER = on_three_axes({"layer": linear_layer(1.0)})["layer"]


@pytest.mark.parametrize("kind", ["head", "embedding", "stage"])
def test_only_layers_defer(kind: str) -> None:
    found = split_times(
        kind, LAYER, LAYER.backward_ms, shape=SHAPE, axes=AXES, recompute=Recompute.NONE
    ).weight_ms
    np.testing.assert_array_equal(found, 0 * LAYER.backward_ms)


@pytest.mark.parametrize(
    ("mode", "deferred"), [(Recompute.NONE, 1536), (Recompute.SELECTIVE, 1024), (Recompute.FULL, 0)]
)
def test_a_layer_takes_the_share_of_its_maps_that_are_not_recomputed(
    mode: Recompute, deferred: int
) -> None:
    found = split_times(
        "layer", LAYER, LAYER.backward_ms, shape=SHAPE, axes=AXES, recompute=mode
    ).weight_ms
    # Per token 8 x 8 x 8 + 4 x 8 x 32 FLOPs in maps, and 4 x 8 per token of its row.
    for place, tokens in enumerate(ROW_TOKENS):
        share = deferred / (2 * (1536 + 32 * tokens))
        assert found[0, place, 0] == pytest.approx(share * LAYER.backward_ms[0, place, 0])


def test_what_halves_take_longer_than_the_whole_is_what_splitting_takes() -> None:
    whole_ms = LAYER.backward_ms
    for input_ms, weight_ms, splitting_ms in (
        (0.75 * whole_ms, 0.5 * whole_ms, 0.25 * whole_ms),
        (0.25 * whole_ms, 1.5 * whole_ms, 0.75 * whole_ms),  # even if weights alone take longer
        (0.5 * whole_ms, 0.25 * whole_ms, 0 * whole_ms),  # by noise
    ):
        halves = replace(LAYER, input_ms=input_ms, weight_ms=weight_ms)
        found = split_times(
            "layer", halves, whole_ms, shape=SHAPE, axes=AXES, recompute=Recompute.NONE
        )
        np.testing.assert_array_equal(found.weight_ms, np.minimum(weight_ms, whole_ms))
        np.testing.assert_array_equal(found.splitting_ms, splitting_ms)


def test_noise_in_whole_passes_is_no_gain_or_loss_of_halves() -> None:
    slow = LAYER.backward_ms.copy()
    slow[0, 0] *= 3  # more than with twice as many rows or tokens
    halves = replace(LAYER, backward_ms=slow, input_ms=0.75 * slow, weight_ms=0.5 * slow)
    found = split_times("layer", halves, slow, shape=SHAPE, axes=AXES, recompute=Recompute.NONE)
    whole_ms = make_monotone(slow).grid
    assert not np.array_equal(whole_ms[:2], slow[:2])
    np.testing.assert_allclose(found.weight_ms[:2], 0.5 * whole_ms[:2])
    np.testing.assert_allclose(found.splitting_ms[:2], 0.25 * whole_ms[:2])


def test_what_is_infeasible_because_less_is_has_no_halves_either() -> None:
    layer, stage = linear_layer(1.0), linear_layer(0.0)
    hole = {}
    for name, grid in layer.grids.items():
        hole[name] = grid.copy()
        hole[name][1, 1] = np.nan
    forward_ms = hole["forward_ms"]
    halves = replace(layer, **hole, input_ms=1.5 * forward_ms, weight_ms=forward_ms)  # type: ignore[arg-type]
    table = linear_table(layer=halves, stage=stage)
    cost = profiled_cost(table, SHAPE, EQUAL, THREE_STAGES, config=CONFIG)
    costs = cost.stage_costs(decoder_shapes(np.array([1, 2, 4]), np.array([32, 32, 64])))
    assert np.isfinite(costs.splitting_ms).all(axis=1).tolist() == [True, False, False]
    assert np.isinf(costs.splitting_ms[1:]).all()
