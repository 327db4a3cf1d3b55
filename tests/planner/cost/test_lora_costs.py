"""Costs of models with adapters: what is frozen has neither state nor gradients."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from tests.examples.decoder_shapes import decoder_shapes
from tests.examples.equal_shares import equal_shares
from tests.examples.measured_layers import SHAPE, linear_table

from dynapipe_hpc.architecture.lora import Lora
from dynapipe_hpc.architecture.model_shape import ModelShape
from dynapipe_hpc.architecture.part import LAYER
from dynapipe_hpc.data.errors import InputError
from dynapipe_hpc.plan.cluster import Cluster
from dynapipe_hpc.planner.cost.analytic import analytic_cost
from dynapipe_hpc.planner.cost.config import AnalyticConfig, ProfiledConfig
from dynapipe_hpc.planner.cost.profiled import profiled_cost
from dynapipe_hpc.planner.cost.table.profile_table import check_model, fingerprint_of

CLUSTER = Cluster(n_stages=3, device_memory_bytes=10**9)
CONFIG = ProfiledConfig(path=Path("costs.h5"))


def adapted(shape: ModelShape, **lora: object) -> ModelShape:
    return shape.model_copy(update={"lora": Lora.model_validate(lora)})


def test_of_measured_weights_only_adapters_have_a_state() -> None:
    shape = adapted(SHAPE, rank=2)
    table = replace(linear_table(), model=fingerprint_of(shape))
    static = profiled_cost(
        table, shape, equal_shares(shape, CLUSTER), CLUSTER, config=CONFIG
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
        costs = analytic_cost(shape, equal_shares(shape, CLUSTER), CLUSTER, rates).stage_costs(
            decoder_shapes(np.array([4]), np.array([256]))
        )
        ratios.append((costs.backward_ms / costs.forward_ms)[0, 1])
        weight_share = (costs.weight_ms / costs.backward_ms)[0, 1]
    assert ratios[0] == pytest.approx(2)
    assert 1 < ratios[1] < 1.1
    assert 0 < weight_share < 0.02
