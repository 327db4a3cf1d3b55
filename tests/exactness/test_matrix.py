"""Every way to train gives the weights of the unsplit model, in float64 to rounding."""

from collections.abc import Sequence
from functools import cache
from itertools import product
from typing import Literal

import pytest
from tests.examples.pipeline_training import MODES, assert_equal, three_steps
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
    (stages, replicas, shards, spread)
    for stages, replicas, shards, spread in product((1, 2, 3, 4), (1, 2), (1, 2, 4), (False, True))
    if stages * replicas * shards <= 8 and (shards > 1 or not spread)
]


@cache
def unsplit(shape: ModelShape) -> Outcome:
    """With all logits at once."""
    return unsplit_training(BATCHES, shape)


@each_layout
@pytest.mark.parametrize("shape", SHAPES, ids=name_of)
@pytest.mark.parametrize(("n_stages", "n_replicas", "n_shards", "sequence_parallel"), UP_TO_8_RANKS)
@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize(
    ("schedule", "zero_stage"), [("adaptive", 1), ("zb_h1", 0), ("weights last", 1)]
)
def test_packed_rows_give_the_unsplit_losses_and_weights(
    shape: ModelShape,
    layouts: Sequence[Layout],
    n_stages: int,
    n_replicas: int,
    n_shards: int,
    sequence_parallel: bool,
    mode: str,
    schedule: str,
    zero_stage: Literal[0, 1],
) -> None:
    cluster = Cluster(
        n_stages=n_stages,
        n_replicas=n_replicas,
        n_shards=n_shards,
        sequence_parallel=sequence_parallel,
        device_memory_bytes=1_000_000,
        zero_stage=zero_stage,
    )
    found = three_steps(cluster, schedule, BATCHES, MODES[mode], shape=shape, layouts=layouts)
    assert_equal(found, unsplit(shape))


@pytest.mark.parametrize("shape", SHAPES, ids=name_of)
@pytest.mark.parametrize(("n_stages", "n_replicas", "n_shards", "sequence_parallel"), UP_TO_8_RANKS)
@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("schedule", ["1f1b", "cyclic", "adaptive", "zb_h1", "weights last"])
@pytest.mark.parametrize("zero_stage", [0, 1])
def test_three_steps_give_the_unsplit_losses_and_weights(
    shape: ModelShape,
    n_stages: int,
    n_replicas: int,
    n_shards: int,
    sequence_parallel: bool,
    mode: str,
    schedule: str,
    zero_stage: Literal[0, 1],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    expected = unsplit(shape)
    monkeypatch.setattr(head, "LOGITS_AT_ONCE", 100)  # several chunks of ids
    cluster = Cluster(
        n_stages=n_stages,
        n_replicas=n_replicas,
        n_shards=n_shards,
        sequence_parallel=sequence_parallel,
        device_memory_bytes=1_000_000,
        zero_stage=zero_stage,
    )
    found = three_steps(cluster, schedule, BATCHES, MODES[mode], shape=shape)
    assert_equal(found, expected)


@pytest.mark.parametrize("shape", [s for s in SHAPES if s.cache_width], ids=name_of)
@pytest.mark.parametrize(("n_stages", "n_replicas", "n_shards", "sequence_parallel"), UP_TO_8_RANKS)
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
    shape: ModelShape,
    n_stages: int,
    n_replicas: int,
    n_shards: int,
    sequence_parallel: bool,
    cuts: str,
    mode: str,
    beside: bool,
    splits: bool,
) -> None:
    cluster = Cluster(
        n_stages=n_stages,
        n_replicas=n_replicas,
        n_shards=n_shards,
        sequence_parallel=sequence_parallel,
        zero_stage=int(splits),
        device_memory_bytes=10**6,
    )
    found = sliced_steps(
        cluster, BATCHES, CUTS[cuts], MODES[mode], shape, beside=beside, splits=splits
    )
    assert_equal(found, unsplit(shape))
