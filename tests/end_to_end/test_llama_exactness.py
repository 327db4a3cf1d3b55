"""A Llama in a pipeline trains as it does unsplit, in float64 to rounding."""

import pytest
from tests.examples.pipeline_training import MODES, assert_equal, three_steps
from tests.examples.training_case import (
    LAYOUTS,
    LLAMA_SHAPE,
    PLAIN_LLAMA_SHAPE,
    random_samples,
    unsplit_training,
)
from tests.examples.training_clusters import clusters, each_of, spread

from dynapipe_hpc.data.microbatch import Layout
from dynapipe_hpc.plan.cluster import Cluster

BATCHES = [random_samples(seed) for seed in (4, 5, 6)]
PADDED, MIXED = (Layout.PADDED,), LAYOUTS["mixed"]
WHOLE, CUT = clusters((2, 2, 1), (4, 1, 1)), clusters((1, 1, 4), (2, 1, 2))
(MANY,) = clusters((3, 2, 1))


@each_of([*WHOLE, *CUT, *spread(CUT)])
def test_three_steps_give_the_unsplit_losses_and_weights(cluster: Cluster) -> None:
    found = three_steps(
        cluster, "adaptive", BATCHES, MODES["mixed"], shape=LLAMA_SHAPE, layouts=MIXED
    )
    assert_equal(found, unsplit_training(BATCHES, LLAMA_SHAPE))


@pytest.mark.parametrize(
    ("cluster", "schedule", "layouts"),
    [(MANY, "zb_h1", PADDED), (CUT[1], "weights last", MIXED)],
    ids=["many", "cut"],
)
def test_so_do_split_backward_passes(
    cluster: Cluster, schedule: str, layouts: tuple[Layout, ...]
) -> None:
    shared = cluster.model_copy(update={"zero_stage": 1})
    shape = PLAIN_LLAMA_SHAPE
    found = three_steps(shared, schedule, BATCHES, MODES["mixed"], shape=shape, layouts=layouts)
    assert_equal(found, unsplit_training(BATCHES, shape))
