"""Preference pairs in packed rows train as separate copies of their prompts do."""

import pytest
from tests.examples.pipeline_training import MODES, assert_equal
from tests.examples.preference_training import DPO, plain_steps, preference_steps, random_pairs
from tests.examples.training_case import LLAMA_SHAPE, SHAPE, name_of
from tests.examples.training_clusters import clusters, each_of, spread

from dynapipe_hpc.architecture.lora import Lora
from dynapipe_hpc.architecture.model_shape import ModelShape
from dynapipe_hpc.plan.cluster import Cluster
from dynapipe_hpc.training.config import PreferenceLossConfig

BATCHES = [random_pairs(seed) for seed in (1, 2, 3)]
LORA = LLAMA_SHAPE.model_copy(update={"lora": Lora(rank=2)})
TIED = SHAPE.model_copy(update={"tied_head": True})
LOSSES = {
    "smoothed": DPO._replace(label_smoothing=0.2),
    "sft": DPO._replace(sft_weight=0.7),
    "per token": DPO._replace(per_token=True),
    "ipo": PreferenceLossConfig("ipo", 0.3),
    "ipo per token": PreferenceLossConfig("ipo", 0.3, per_token=True),
}


@pytest.mark.parametrize("shape", [SHAPE, TIED, LLAMA_SHAPE, LORA], ids=name_of)
@pytest.mark.parametrize("mode", MODES)
def test_weights_are_those_of_separate_copies(shape: ModelShape, mode: str) -> None:
    (cluster,) = clusters((2, 2, 1))
    found = preference_steps(cluster, BATCHES, modes=MODES[mode], shape=shape)
    assert_equal(found, plain_steps(BATCHES, shape=shape))


@pytest.mark.parametrize("config", LOSSES.values(), ids=LOSSES.keys())
def test_every_loss_is_that_of_its_formula(config: PreferenceLossConfig) -> None:
    (cluster,) = clusters((2, 1, 1))
    found = preference_steps(cluster, BATCHES, config)
    assert_equal(found, plain_steps(BATCHES, config))


@each_of(clusters((4, 2, 1), (1, 1, 1)) + spread(clusters((2, 1, 2))) + clusters((1, 1, 2)))
@pytest.mark.parametrize("n_parts", [4, 8])
def test_any_division_gives_the_same_weights(cluster: Cluster, n_parts: int) -> None:
    found = preference_steps(
        cluster, BATCHES, shape=LLAMA_SHAPE, schedule="adaptive, split", n_parts=n_parts
    )
    assert_equal(found, plain_steps(BATCHES, shape=LLAMA_SHAPE))
