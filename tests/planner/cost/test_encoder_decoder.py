from pathlib import Path

import numpy as np
import pytest
from tests.examples.measured_layers import SHAPE, T5_SHAPE, linear_t5_table

from dynapipe_hpc.architecture.placement import Placement
from dynapipe_hpc.plan.cluster import Cluster
from dynapipe_hpc.planner.cost.config import ProfiledConfig
from dynapipe_hpc.planner.cost.cost_model import CostModel, Shapes
from dynapipe_hpc.planner.cost.profiled import profiled_cost
from dynapipe_hpc.planner.cost.stage_parts import boundary_sizes, parts_of_stages

CONFIG = ProfiledConfig(path=Path("c.h5"))


def on(n_stages: int) -> Placement:
    return Placement.equal_shares(6, n_stages)


def t5_cost(n_stages: int) -> CostModel:
    cluster = Cluster(n_stages=n_stages, device_memory_bytes=10**9)
    return profiled_cost(linear_t5_table(), T5_SHAPE, on(cluster.n_stages), cluster, config=CONFIG)


def one(n_rows: int, row_tokens: int, target_tokens: int) -> Shapes:
    return Shapes.padded(*np.array([[n_rows], [row_tokens], [target_tokens]]))


def test_encoder_layers_come_first_and_either_side_begins_with_an_embedding() -> None:
    parts = parts_of_stages(T5_SHAPE, on(4))
    assert {kind: count.tolist() for kind, count in parts.items()} == {
        "encoder": [1, 2, 0, 0],
        "decoder": [0, 0, 2, 1],
        "encoder_side": [1, 1, 0, 0],
        "decoder_side": [0, 0, 1, 1],
        "embedding": [1, 0, 1, 0],
        "head": [0, 0, 0, 1],
        "stage": [1, 1, 1, 1],
    }


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
