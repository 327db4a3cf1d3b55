"""A T5 in a pipeline trains as it does unsplit, in float64 to rounding."""

from collections.abc import Sequence

from tests.examples.pipeline_training import MODES, assert_equal, gradients, three_steps
from tests.examples.training_case import (
    GATED_T5_SHAPE,
    T5_SHAPE,
    each_layout,
    padded,
    random_samples,
    random_split,
    unsplit_gradients,
    unsplit_training,
)
from tests.examples.training_clusters import clusters, each_of, spread

from dynapipe_hpc.data.microbatch import Layout
from dynapipe_hpc.plan.cluster import Cluster

CLUSTERS = clusters(
    (1, 1, 1),
    (1, 2, 1),
    (2, 1, 1),
    (2, 2, 1),
    (3, 1, 1),
    (3, 2, 1),
    (4, 1, 1),
    (4, 2, 1),
    (6, 1, 1),
    (1, 1, 2),
    (3, 1, 2),
)
every_cluster = each_of(CLUSTERS + spread(CLUSTERS))


@every_cluster
def test_loss_and_every_gradient_are_those_of_the_unsplit_model(cluster: Cluster) -> None:
    samples = random_samples(1)
    microbatches = random_split(samples, 6, 1, MODES["mixed"], T5_SHAPE)
    found = gradients(cluster, "cyclic", samples, microbatches, shape=T5_SHAPE)
    assert_equal(found, unsplit_gradients(samples, padded(samples, T5_SHAPE), shape=T5_SHAPE))


@every_cluster
def test_three_steps_of_the_optimizer_give_the_unsplit_weights(cluster: Cluster) -> None:
    batches = [random_samples(seed) for seed in (4, 5, 6)]
    found = three_steps(cluster, "adaptive", batches, MODES["mixed"], shape=T5_SHAPE)
    assert_equal(found, unsplit_training(batches, T5_SHAPE))


PACKING = clusters((1, 1, 1), (2, 2, 1), (3, 1, 1), (4, 1, 1), (2, 1, 2))


@each_layout
@each_of(PACKING + spread(PACKING))
def test_packed_rows_give_the_weights_of_padded_ones(
    cluster: Cluster, layouts: Sequence[Layout]
) -> None:
    batches = [random_samples(seed) for seed in (4, 5, 6)]
    found = three_steps(
        cluster, "adaptive", batches, MODES["mixed"], shape=T5_SHAPE, layouts=layouts
    )
    assert_equal(found, unsplit_training(batches, T5_SHAPE))


GATED = clusters((2, 2, 1), (5, 1, 1), (2, 1, 2))


@each_of(GATED + spread(GATED))
def test_other_kinds_of_t5_train_as_they_do_unsplit(cluster: Cluster) -> None:
    batches = [random_samples(seed) for seed in (4, 5, 6)]
    layouts = (Layout.PACKED, Layout.PADDED)
    found = three_steps(
        cluster, "zb_h1", batches, MODES["mixed"], shape=GATED_T5_SHAPE, layouts=layouts
    )
    assert_equal(found, unsplit_training(batches, GATED_T5_SHAPE))
