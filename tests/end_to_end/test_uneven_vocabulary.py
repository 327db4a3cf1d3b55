"""Shards that do not divide the vocabulary train the unsplit model, in float64 to rounding."""

import pytest
from tests.examples.pipeline_training import MODES, assert_equal, gradients, three_steps
from tests.examples.training_case import (
    UNEVEN_SHAPE,
    UNEVEN_T5_SHAPE,
    padded,
    random_samples,
    random_split,
    unsplit_gradients,
    unsplit_training,
)
from tests.examples.training_clusters import clusters, each_of

from dynapipe_hpc.architecture.model_shape import ModelShape
from dynapipe_hpc.plan.cluster import Cluster

CLUSTERS = clusters((1, 1, 2), (1, 1, 3), (2, 1, 3), (2, 2, 2))
STAGES_OF_THREE_SHARDS = CLUSTERS[2]
every_cluster = each_of(CLUSTERS)
# Logits of a GPT have weights of their own, those of a T5 have the embedding's.
every_family = pytest.mark.parametrize(
    "shape", [UNEVEN_SHAPE, UNEVEN_T5_SHAPE], ids=lambda shape: shape.family
)


@every_family
@every_cluster
def test_loss_and_every_gradient_are_those_of_the_unsplit_model(
    cluster: Cluster, shape: ModelShape
) -> None:
    samples = random_samples(1)
    microbatches = random_split(samples, 6, 1, MODES["mixed"], shape)
    found = gradients(cluster, "1f1b", samples, microbatches, shape=shape)
    assert_equal(found, unsplit_gradients(samples, padded(samples, shape), shape=shape))


@every_family
def test_three_steps_of_the_optimizer_give_the_unsplit_weights(shape: ModelShape) -> None:
    batches = [random_samples(seed) for seed in (4, 5, 6)]
    found = three_steps(STAGES_OF_THREE_SHARDS, "1f1b", batches, MODES["mixed"], shape=shape)
    assert_equal(found, unsplit_training(batches, shape))
