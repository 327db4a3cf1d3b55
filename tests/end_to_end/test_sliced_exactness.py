"""Slices of samples as micro-batches give the weights of the unsplit model, whatever the order."""

from collections.abc import Sequence

import pytest
from tests.examples.pipeline_training import MODES, assert_equal
from tests.examples.sliced_case import CUTS, sliced_steps
from tests.examples.training_case import (
    LLAMA_SHAPE,
    PLAIN_LLAMA_SHAPE,
    SHAPE,
    TIED_SHAPE,
    name_of,
    random_samples,
    unsplit_training,
)
from tests.examples.training_clusters import clusters, each_of, spread

from dynapipe_hpc.architecture.lora import Lora
from dynapipe_hpc.architecture.model_shape import ModelShape
from dynapipe_hpc.plan.cluster import Cluster

BATCHES = [random_samples(seed) for seed in (4, 5, 6)]
DROPPING = SHAPE.model_copy(update={"dropout": 0.2})
ADAPTED = PLAIN_LLAMA_SHAPE.model_copy(
    update={"hidden_size": 16, "n_heads": 8, "n_kv_heads": 4, "lora": Lora(rank=3)}
)
ONE, PIPELINES, SHARDS = clusters((1, 1, 1)), clusters((4, 2, 1)), clusters((2, 1, 2))
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
    check_arrangement(cluster, shape, beside=True, splits=True)


@pytest.mark.slow
@pytest.mark.parametrize("splits", [False, True], ids=["whole", "split"])
@pytest.mark.parametrize("beside", [False, True], ids=["alone", "beside others"])
@pytest.mark.parametrize(
    "shape", [TIED_SHAPE, LLAMA_SHAPE, DROPPING, ADAPTED], ids=["tied", "llama", "dropout", "lora"]
)
@each_of(ONE + PIPELINES + SHARDS + spread(SHARDS))
def test_weights_are_the_same_in_every_arrangement(
    cluster: Cluster, shape: ModelShape, beside: bool, splits: bool
) -> None:
    check_arrangement(cluster, shape, beside=beside, splits=splits)


def check_arrangement(cluster: Cluster, shape: ModelShape, *, beside: bool, splits: bool) -> None:
    found = sliced_steps(
        cluster, BATCHES, CUTS["unequal"], MODES["mixed"], shape, beside=beside, splits=splits
    )
    # Adapters are begun as those of a run, which the unsplit model does not do.
    whole = (
        sliced_steps(ONE[0], BATCHES, (), MODES["none"], shape)
        if shape.lora
        else unsplit_training(BATCHES, shape)
    )
    assert_equal(found, whole)
