"""Memory of stages that train adapters: as predicted, within five per cent."""

import numpy as np
import pytest
import torch
from tests.examples.equal_shares import equal_shares
from tests.examples.training_case import (
    GATED_T5_SHAPE,
    SHAPE,
    T5_SHAPE,
    make_rank,
    name_of,
    padded,
    random_samples,
)

from dynapipe_hpc.architecture.lora import Lora
from dynapipe_hpc.architecture.model_shape import ModelShape
from dynapipe_hpc.data.microbatch import MicroBatch
from dynapipe_hpc.plan.cluster import Cluster
from dynapipe_hpc.planner.cost.analytic import analytic_cost
from dynapipe_hpc.planner.cost.config import AnalyticConfig
from dynapipe_hpc.planner.cost.cost_model import Shapes
from dynapipe_hpc.training.collectives import SingleRankCollectives

SAMPLES = random_samples(3, n=24)
CLUSTER = Cluster(n_stages=2, device_memory_bytes=1)
SIZES = {"hidden_size": 96, "n_heads": 4, "ffn_size": 256, "vocab_size": 200}
COSTS = AnalyticConfig(state_factor=4)  # float32
SHAPES = [
    shape.model_copy(update={**SIZES, "lora": Lora(rank=rank, targets=targets)})
    for shape, rank, targets in (
        (SHAPE, 8, None),
        (SHAPE, 4, ("query_key_value", "up")),
        (T5_SHAPE, 8, None),
        (T5_SHAPE, 4, ("query", "value")),
        (GATED_T5_SHAPE, 8, None),
    )
]


def received(shape: ModelShape, batch: MicroBatch, stage: int) -> torch.Tensor | None:
    """Activation that the stage before hands over."""
    if stage == 0:
        return None
    boundary = equal_shares(shape, CLUSTER).boundaries(shape)[0]
    return torch.randn(boundary.shape(batch, shape.hidden_size, 1))


@pytest.mark.parametrize("stage", [0, 1])
@pytest.mark.parametrize("shape", SHAPES, ids=lambda shape: f"{name_of(shape)}-{shape.lora}")
def test_memory_is_as_predicted(shape: ModelShape, stage: int) -> None:
    batch = padded(SAMPLES, shape)
    rank = make_rank(CLUSTER, stage, SingleRankCollectives(), dtype=torch.float32, shape=shape)
    rank.tokens.start_iteration(SAMPLES)
    rank.stage.load(0, batch)
    rank.stage.forward(0, received(shape, batch, stage))
    rank.optimizer.step()  # which makes its state
    found = rank.optimizer.kept_bytes + rank.stage.finish_iteration().peak_bytes
    costs = analytic_cost(shape, equal_shares(shape, CLUSTER), CLUSTER, COSTS)
    sizes = (batch.n_rows, batch.row_tokens, batch.target_tokens)
    shapes = Shapes.padded(*(np.array([size]) for size in sizes))
    stored = costs.stage_costs(shapes).stored_bytes
    assert found == pytest.approx(costs.static_bytes[stage] + stored[0, stage], rel=0.05)
