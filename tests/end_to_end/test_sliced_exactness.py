"""Slices of samples as micro-batches give the weights of the unsplit model, whatever the order."""

from collections.abc import Sequence

import pytest
from tests.examples.pipeline_training import MODES, assert_equal
from tests.examples.sliced_case import CUTS, sliced_steps
from tests.examples.training_case import (
    LLAMA_SHAPE,
    SHAPE,
    name_of,
    random_samples,
    unsplit_training,
)
from tests.examples.training_clusters import clusters, each_of, spread

from dynapipe_hpc.architecture.model_shape import ModelShape
from dynapipe_hpc.plan.cluster import Cluster

BATCHES = [random_samples(seed) for seed in (4, 5, 6)]
DROPPING = SHAPE.model_copy(update={"dropout": 0.2})
PIPELINES, SHARDS = clusters((4, 2, 1)), clusters((2, 1, 2))
slow = pytest.mark.slow


@pytest.mark.parametrize("shape", [SHAPE, LLAMA_SHAPE], ids=name_of)
@pytest.mark.parametrize("cuts", CUTS.values(), ids=CUTS.keys())
@pytest.mark.parametrize(
    "mode", [pytest.param(mode, marks=() if mode == "mixed" else slow) for mode in MODES]
)
def test_weights_are_those_of_the_unsplit_model(
    shape: ModelShape, cuts: Sequence[float], mode: str
) -> None:
    (cluster,) = clusters((2, 2, 1))
    found = sliced_steps(cluster, BATCHES, cuts, MODES[mode], shape)
    assert_equal(found, unsplit_training(BATCHES, shape))


@pytest.mark.parametrize("shape", [LLAMA_SHAPE, DROPPING], ids=["llama", "dropout"])
@each_of(PIPELINES + spread(SHARDS))
def test_slices_may_have_others_beside_them_and_split_backward_passes(
    cluster: Cluster, shape: ModelShape
) -> None:
    found = sliced_steps(
        cluster, BATCHES, CUTS["unequal"], MODES["mixed"], shape, beside=True, splits=True
    )
    assert_equal(found, unsplit_training(BATCHES, shape))
