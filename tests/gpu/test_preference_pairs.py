"""Preference pairs on a GPU: gradients of pairs on the processor, and no waiting of the host."""

import pytest
import torch
from tests.examples.preference_training import ALONE, DPO, packed_pairs, references_of
from tests.examples.training_case import LLAMA_SHAPE, SHAPE, Rank, make_rank
from tests.gpu.no_waiting import no_waiting
from tests.gpu.test_attention import flat, shape_with

from dynapipe_hpc.architecture.model_shape import ModelShape
from dynapipe_hpc.data.sample import Sample
from dynapipe_hpc.training.collectives import SingleRankCollectives
from dynapipe_hpc.training.preferences import PreferenceLoss

pytestmark = pytest.mark.gpu

PAIRS = [Sample(0, 60, 20, 0, 40), Sample(1, 0, 5, 0, 1), Sample(2, 9, 70, 0, 33)]
SHARED_KEYS = LLAMA_SHAPE.model_copy(update={"n_kv_heads": 1})
SHAPES = [shape_with(SHAPE, 64), shape_with(SHARED_KEYS, 64)]
every_shape = pytest.mark.parametrize("shape", SHAPES, ids=lambda shape: shape.family)


def rank_of(device: torch.device, shape: ModelShape, dtype: torch.dtype) -> Rank:
    objective = PreferenceLoss(DPO, references_of(len(PAIRS)).to(device))
    collectives = SingleRankCollectives()
    rank = make_rank(
        ALONE, 0, collectives, shape=shape, dtype=dtype, device=device, objective=objective
    )
    rank.tokens.start_iteration(PAIRS)
    return rank


def run(rank: Rank) -> None:
    """Both passes over all pairs."""
    rank.stage.load(0, packed_pairs(PAIRS))
    rank.stage.forward(0, None)
    rank.stage.backward(0, None)


@every_shape
def test_gradients_are_those_of_a_processor(device: torch.device, shape: ModelShape) -> None:
    exact = rank_of(torch.device("cpu"), shape, torch.float64)
    found = rank_of(device, shape, torch.bfloat16)
    for rank in (exact, found):
        run(rank)
    expected = flat(exact.gradients())
    assert (flat(found.gradients()) - expected).norm() <= 0.05 * expected.norm()


@every_shape
def test_no_pair_makes_the_host_wait(device: torch.device, shape: ModelShape) -> None:
    rank = rank_of(device, shape, torch.bfloat16)
    run(rank)  # warms up
    torch.cuda.synchronize(device)
    with no_waiting():  # or else this raises
        run(rank)
    assert rank.stage.finish_iteration().loss > 0
