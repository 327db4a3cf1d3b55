import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.examples.decoder_shapes import decoder_shapes
from tests.examples.equal_shares import equal_shares
from tests.examples.measured_layers import (
    SHAPE,
    linear_grid,
    linear_layer,
    linear_table,
    with_packed,
)
from tests.examples.repaired_share import repaired_share

from dynapipe_hpc.architecture.transformers import TransformersShape
from dynapipe_hpc.data.errors import InputError
from dynapipe_hpc.data.microbatch import Layout
from dynapipe_hpc.plan.cluster import Cluster
from dynapipe_hpc.planner.cost.config import ProfiledConfig
from dynapipe_hpc.planner.cost.cost_model import CostModel, KnownRows, StageCosts
from dynapipe_hpc.planner.cost.profiled import profiled_cost
from dynapipe_hpc.planner.cost.table.describe_table import describe_table
from dynapipe_hpc.planner.cost.table.profile_file import read_table, write_table
from dynapipe_hpc.planner.cost.table.profile_table import check_model, fingerprint_of

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


def test_a_boundary_tensor_has_one_number_per_token_and_channel() -> None:
    assert costs_of(3, 40).boundary_bytes.tolist() == [[3 * 40 * 8 * 4] * 2 + [0]]


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


def test_noise_is_repaired_and_its_share_told() -> None:
    noisy = linear_grid(1.0)
    noisy[1, 1] = 10.0
    layer = replace(linear_layer(1.0), forward_ms=noisy)
    cost = profiled_cost(linear_table(layer=layer), SHAPE, EQUAL, THREE_STAGES, config=CONFIG)
    assert 0 < repaired_share(cost) < 0.05
    quiet = profiled_cost(linear_table(), SHAPE, EQUAL, THREE_STAGES, config=CONFIG)
    assert repaired_share(quiet) == 0


def test_a_table_of_another_model_is_refused_with_both_values() -> None:
    shape = SHAPE.model_copy(update={"hidden_size": 16, "vocab_size": 60})
    with pytest.raises(
        InputError,
        match=r"costs.h5: costs of another model: hidden_size is 8 there and 16 in \[model\], "
        r"vocab_size is 50 there and 60 in \[model\]; measure this one",
    ):
        profiled_cost(linear_table(), shape, EQUAL, THREE_STAGES, config=CONFIG)


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
    with pytest.raises(InputError, match="another model: settings are others there than in"):
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


def test_a_mode_that_was_not_measured_is_named() -> None:
    config = CONFIG.model_copy(update={"recompute": ("full",)})
    with pytest.raises(
        InputError,
        match=r"holds no measurements of tensor_parallel=1/recompute=full/layer, only of: "
        r"tensor_parallel=1/recompute=none/stage; .*change planner.cost",
    ):
        profiled_cost(linear_table(), SHAPE, EQUAL, THREE_STAGES, config=config)
