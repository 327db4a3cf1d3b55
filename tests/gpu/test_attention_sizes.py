"""Heads as wide as fused attention kernels want them, rows of many lengths, and 16 bits."""

from collections.abc import Sequence
from functools import cache
from itertools import product

import pytest
import torch
from tests.examples.training_case import (
    SHAPE,
    T5_SHAPE,
    Outcome,
    Rank,
    laid_out,
    make_rank,
    padded,
    unsplit_gradients,
)
from tests.gpu.no_waiting import no_waiting
from torch import Tensor

from dynapipe_hpc.architecture.families import shape_from_values
from dynapipe_hpc.architecture.model_shape import ModelShape
from dynapipe_hpc.data.microbatch import Layout
from dynapipe_hpc.data.sample import Sample
from dynapipe_hpc.plan.cluster import Cluster
from dynapipe_hpc.training.collectives import SingleRankCollectives

pytestmark = pytest.mark.gpu

N_LENGTHS, LONGEST = 40, 168
ROWS_EACH, WIDTH = 2, 128
ALONE = Cluster(device_memory_bytes=1_000_000)


def shape_with(family: ModelShape, head_size: int) -> ModelShape:
    sizes = {"n_layers": 2, "hidden_size": WIDTH, "ffn_size": 256, "max_tokens": LONGEST}
    heads = {"n_heads": WIDTH // head_size, "head_size": head_size}
    return shape_from_values(family.model_dump() | sizes | heads)


SHAPES = [shape_with(family, size) for family in (SHAPE, T5_SHAPE) for size in (64, 128)]
CASES = list(product(SHAPES, (Layout.PADDED, Layout.PACKED)))
every_case = pytest.mark.parametrize(
    ("shape", "layout"), CASES, ids=[f"{s.family}-{s.head_size}-{way.text}" for s, way in CASES]
)


def batches() -> list[list[Sample]]:
    """As many lengths of rows as batches; most rows of a batch are shorter, and are padded."""
    longest = torch.linspace(8, LONGEST - 2, N_LENGTHS).long().tolist()
    return [
        [
            _sample(100 * k + j, max(2, length * (ROWS_EACH - j) // ROWS_EACH))
            for j in range(ROWS_EACH)
        ]
        for k, length in enumerate(longest)
    ]


def _sample(sample_id: int, tokens: int) -> Sample:
    return Sample(sample_id, tokens - tokens // 2, tokens // 2, task_id=0)


def rank_on(device: torch.device, shape: ModelShape, dtype: torch.dtype) -> Rank:
    return make_rank(ALONE, 0, SingleRankCollectives(), shape=shape, dtype=dtype, device=device)


def pass_both_ways(
    rank: Rank, of: Sequence[Sequence[Sample]], shape: ModelShape, layout: Layout
) -> None:
    """Runs every batch as a micro-batch of one iteration."""
    for i, samples in enumerate(of):
        rank.stage.load(i, laid_out(samples, layout, shape))
        rank.stage.forward(i, None)
        rank.stage.backward(i, None)


@cache
def unsplit(shape: ModelShape) -> Outcome:
    """Result of one pass over all samples, in float64 on the processor."""
    samples = [sample for batch in batches() for sample in batch]
    return unsplit_gradients(samples, padded(samples, shape), shape=shape)


def flat(gradients: dict[str, Tensor]) -> Tensor:
    return torch.cat([gradients[name].double().cpu().flatten() for name in sorted(gradients)])


@every_case
@pytest.mark.parametrize(
    ("dtype", "tolerance"), [(torch.float32, 1e-3), (torch.bfloat16, 5e-2)], ids=str
)
def test_gradients_are_those_of_the_processor(
    device: torch.device, shape: ModelShape, layout: Layout, dtype: torch.dtype, tolerance: float
) -> None:
    of = batches()
    samples = [sample for batch in of for sample in batch]
    expected = unsplit(shape)
    rank = rank_on(device, shape, dtype)
    rank.tokens.start_iteration(samples)
    pass_both_ways(rank, of, shape, layout)
    found, wanted = flat(rank.gradients()), flat(expected.tensors)
    assert rank.stage.finish_iteration().loss == pytest.approx(expected.losses[0], rel=tolerance)
    assert (found - wanted).norm() < tolerance * wanted.norm()


@every_case
def test_no_length_makes_the_host_wait(
    device: torch.device, shape: ModelShape, layout: Layout
) -> None:
    of = batches()
    rank = rank_on(device, shape, torch.bfloat16)
    rank.tokens.start_iteration([sample for batch in of for sample in batch])
    pass_both_ways(rank, of[::2], shape, layout)  # warms up; every other length is new below
    torch.cuda.synchronize(device)
    with no_waiting():  # or else this raises
        pass_both_ways(rank, of, shape, layout)
    assert rank.stage.finish_iteration().loss > 0
