"""With dropout, too, a model trains in any pipeline as it does unsplit: masks are the same."""

from collections.abc import Sequence

import pytest
import torch
from tests.examples.pipeline_training import MODES, assert_equal, three_steps
from tests.examples.training_case import (
    GATED_T5_SHAPE,
    SHAPE,
    T5_SHAPE,
    name_of,
    random_samples,
    unsplit_training,
)
from tests.examples.training_clusters import clusters, each_of, spread

from dynapipe_hpc.architecture.model_shape import ModelShape
from dynapipe_hpc.data.microbatch import Layout
from dynapipe_hpc.plan.cluster import Cluster

BATCHES = [random_samples(seed) for seed in (4, 5, 6)]
CLUSTERS = clusters((4, 2, 1)) + spread(clusters((2, 1, 2)))
each_shape = pytest.mark.parametrize(
    "shape",
    [each.model_copy(update={"dropout": 0.2}) for each in (SHAPE, T5_SHAPE, GATED_T5_SHAPE)],
    ids=name_of,
)


@each_shape
@each_of(CLUSTERS)
def test_weights_are_those_of_the_unsplit_model(shape: ModelShape, cluster: Cluster) -> None:
    layouts: Sequence[Layout] = (Layout.PACKED, Layout.PADDED)
    found = three_steps(cluster, "zb_h1", BATCHES, MODES["mixed"], shape=shape, layouts=layouts)
    assert_equal(found, unsplit_training(BATCHES, shape))


@pytest.mark.parametrize("shape", [T5_SHAPE.model_copy(update={"dropout": 0.2})], ids=name_of)
def test_dropout_changes_training_and_leaves_nothing_to_chance(shape: ModelShape) -> None:
    without = unsplit_training(BATCHES[:2], shape.model_copy(update={"dropout": 0.0}))
    first, second = (unsplit_training(BATCHES[:2], shape) for _ in range(2))
    assert first.losses == second.losses
    assert all(torch.equal(first.tensors[name], second.tensors[name]) for name in first.tensors)
    assert abs(first.losses[0] - without.losses[0]) > 1e-3
