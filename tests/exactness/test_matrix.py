"""Every way to train gives the weights of the unsplit model, in float64 to rounding."""

import math
from collections.abc import Sequence
from functools import cache
from itertools import product

import pytest
from tests.examples.pipeline_training import (
    MODES,
    assert_equal,
    clusters,
    each_of,
    spread,
    three_steps,
)
from tests.examples.sliced_case import CUTS, sliced_steps
from tests.examples.training_case import (
    GATED_T5_SHAPE,
    LLAMA_SHAPE,
    SHAPE,
    T5_SHAPE,
    TIED_SHAPE,
    Outcome,
    each_layout,
    name_of,
    random_samples,
    unsplit_training,
)

from dynapipe_hpc.architecture.lora import Lora
from dynapipe_hpc.architecture.model_shape import ModelShape
from dynapipe_hpc.data.microbatch import Layout
from dynapipe_hpc.models import head
from dynapipe_hpc.plan.cluster import Cluster

pytestmark = pytest.mark.exactness

SHAPES = (
    *(SHAPE, LLAMA_SHAPE, T5_SHAPE),
    *(each.model_copy(update={"dropout": 0.2}) for each in (TIED_SHAPE, GATED_T5_SHAPE)),
    # With less in its norms, rounding in one step would be 1e-11 of the gradients of the next.
    LLAMA_SHAPE.model_copy(update={"lora": Lora(rank=3), "norm_epsilon": 1e-3}),
)
BATCHES = [random_samples(seed) for seed in (4, 5, 6)]

UP_TO_8_RANKS = [
    sizes for sizes in product((1, 2, 3, 4), (1, 2), (1, 2, 4)) if math.prod(sizes) <= 8
]
every_cluster = each_of(clusters(*UP_TO_8_RANKS) + spread(clusters(*UP_TO_8_RANKS)))
every_shape = pytest.mark.parametrize("shape", SHAPES, ids=name_of)
every_mode = pytest.mark.parametrize("mode", MODES)


@cache
def unsplit(shape: ModelShape) -> Outcome:
    """With all logits at once."""
    return unsplit_training(BATCHES, shape)


def sharing(cluster: Cluster, zero_stage: int) -> Cluster:
    return cluster.model_copy(update={"zero_stage": zero_stage})


@each_layout
@every_shape
@every_cluster
@every_mode
@pytest.mark.parametrize(
    ("schedule", "zero_stage"), [("adaptive", 1), ("zb_h1", 0), ("weights last", 1)]
)
def test_packed_rows_give_the_unsplit_losses_and_weights(
    shape: ModelShape,
    layouts: Sequence[Layout],
    cluster: Cluster,
    mode: str,
    schedule: str,
    zero_stage: int,
) -> None:
    shared = sharing(cluster, zero_stage)
    found = three_steps(shared, schedule, BATCHES, MODES[mode], shape=shape, layouts=layouts)
    assert_equal(found, unsplit(shape))


@every_shape
@every_cluster
@every_mode
@pytest.mark.parametrize("schedule", ["1f1b", "cyclic", "adaptive", "zb_h1", "weights last"])
@pytest.mark.parametrize("zero_stage", [0, 1])
def test_three_steps_give_the_unsplit_losses_and_weights(
    shape: ModelShape,
    cluster: Cluster,
    mode: str,
    schedule: str,
    zero_stage: int,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    expected = unsplit(shape)
    monkeypatch.setattr(head, "LOGITS_AT_ONCE", 100)  # several chunks of ids
    shared = sharing(cluster, zero_stage)
    assert_equal(three_steps(shared, schedule, BATCHES, MODES[mode], shape=shape), expected)


@pytest.mark.parametrize("shape", [s for s in SHAPES if s.cache_width], ids=name_of)
@every_cluster
@pytest.mark.parametrize(
    ("cuts", "mode", "beside", "splits"),
    [
        ("one token", "none", False, True),
        ("unequal", "mixed", True, False),
        ("many", "full", True, True),
        ("many", "selective", False, False),
    ],
)
def test_slices_give_the_unsplit_losses_and_weights(
    shape: ModelShape, cluster: Cluster, cuts: str, mode: str, beside: bool, splits: bool
) -> None:
    shared = sharing(cluster, int(splits))
    found = sliced_steps(
        shared, BATCHES, CUTS[cuts], MODES[mode], shape, beside=beside, splits=splits
    )
    assert_equal(found, unsplit(shape))
