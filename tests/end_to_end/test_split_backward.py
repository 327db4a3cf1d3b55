"""Training with split backward passes gives what training with whole ones gives."""

from collections.abc import Sequence

import pytest
import torch
from tests.examples.pipeline_training import MODES, assert_equal, gradients, three_steps
from tests.examples.training_case import (
    SHAPE,
    T5_SHAPE,
    each_layout,
    padded,
    random_samples,
    random_split,
    unsplit_gradients,
    unsplit_training,
)
from tests.examples.training_clusters import clusters, spread

from dynapipe_hpc.architecture.model_shape import ModelShape
from dynapipe_hpc.data.microbatch import Layout
from dynapipe_hpc.plan.cluster import Cluster

ONE, MANY, CUT = clusters((1, 1, 1), (3, 2, 1), (2, 1, 2))
every_shape = pytest.mark.parametrize("shape", [SHAPE, T5_SHAPE], ids=lambda s: s.family)


@every_shape
@pytest.mark.parametrize(
    ("cluster", "schedule"),
    [
        (ONE, "weights last"),
        (MANY, "zb_h1"),
        (MANY, "adaptive, split"),
        (MANY, "overtaking"),
        (CUT, "weights last"),
        *((cluster, "weights last") for cluster in spread([CUT])),
    ],
    ids=["one", "many", "many, adaptive", "many, overtaking", "cut", "spread"],
)
def test_loss_and_every_gradient_are_those_of_the_unsplit_model(
    cluster: Cluster, schedule: str, shape: ModelShape
) -> None:
    samples = random_samples(1)
    microbatches = random_split(samples, 6, 1, MODES["mixed"], shape)
    found = gradients(cluster, schedule, samples, microbatches, shape=shape)
    assert_equal(found, unsplit_gradients(samples, padded(samples, shape), shape=shape))


@each_layout
@pytest.mark.parametrize("schedule", ["zb_h1", "adaptive, split", "overtaking", "weights last"])
@pytest.mark.parametrize("cluster", [ONE, MANY, CUT], ids=["one", "many", "cut"])
@pytest.mark.parametrize("mode", MODES)
def test_packed_rows_have_the_loss_and_gradients_of_the_unsplit_model(
    cluster: Cluster, schedule: str, layouts: Sequence[Layout], mode: str
) -> None:
    samples = random_samples(3)
    microbatches = random_split(samples, 6, 3, MODES[mode], layouts=layouts)
    found = gradients(cluster, schedule, samples, microbatches)
    assert_equal(found, unsplit_gradients(samples, padded(samples)))


@each_layout
def test_so_do_three_steps_with_packed_rows(layouts: Sequence[Layout]) -> None:
    batches = [random_samples(seed) for seed in (4, 5, 6)]
    cluster = MANY.model_copy(update={"zero_stage": 1})
    found = three_steps(cluster, "zb_h1", batches, MODES["mixed"], layouts=layouts)
    assert_equal(found, unsplit_training(batches))


@every_shape
def test_one_micro_batch_gives_the_bits_of_a_whole_pass(shape: ModelShape) -> None:
    # Several would be added up in another order.
    samples = random_samples(2)
    microbatches = random_split(samples, 2, 2, shape=shape)
    whole, split = (
        gradients(MANY, schedule, samples, microbatches, shape=shape)
        for schedule in ("1f1b", "weights last")
    )
    assert split.losses == whole.losses
    for name, gradient in whole.tensors.items():
        assert torch.equal(split.tensors[name], gradient), name
