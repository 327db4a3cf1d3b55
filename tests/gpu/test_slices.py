"""Samples in slices on a GPU: gradients of the whole samples, and no waiting of the host."""

from collections.abc import Sequence
from dataclasses import replace

import pytest
import torch
from tests.examples.sliced_case import sliced_row, slices_of
from tests.examples.training_case import LLAMA_SHAPE, SHAPE, Rank, packed, padded, unsplit_gradients
from tests.gpu.no_waiting import no_waiting
from tests.gpu.test_attention import flat, rank_on, shape_with

from dynapipe_hpc.architecture.model_shape import ModelShape
from dynapipe_hpc.data.microbatch import MicroBatch, Recompute
from dynapipe_hpc.data.sample import Sample

pytestmark = pytest.mark.gpu

LONG, BESIDE = Sample(0, 80, 80, task_id=0), Sample(1, 5, 6, task_id=0)
SAMPLES = [LONG, BESIDE]
CUTS: Sequence[float] = (1, 0.3, 0.9)


def shared_keys(head_size: int) -> ModelShape:
    """A Llama whose heads all share their keys and values."""
    return shape_with(LLAMA_SHAPE.model_copy(update={"n_kv_heads": 1}), head_size)


SHAPES = [family for size in (64, 128) for family in (shape_with(SHAPE, size), shared_keys(size))]
every_shape = pytest.mark.parametrize(
    "shape", SHAPES, ids=[f"{s.family}-{s.head_size}" for s in SHAPES]
)


def sliced() -> list[MicroBatch]:
    """A long sample as slices, the third with a short sample behind it."""
    parts = slices_of(LONG, CUTS)
    return [sliced_row(LONG, part, [BESIDE] * (k == 2)) for k, part in enumerate(parts)]


def run(rank: Rank, microbatches: Sequence[MicroBatch]) -> None:
    """All forward passes, then all backward passes in the opposite order."""
    for i, microbatch in enumerate(microbatches):
        rank.stage.load(i, microbatch)
        rank.stage.forward(i, None)
    for i in reversed(range(len(microbatches))):
        rank.stage.backward(i, None)


def gradients(
    device: torch.device, shape: ModelShape, microbatches: Sequence[MicroBatch]
) -> torch.Tensor:
    rank = rank_on(device, shape, torch.bfloat16)
    rank.tokens.start_iteration(SAMPLES)
    run(rank, microbatches)
    return flat(rank.gradients())


@every_shape
@pytest.mark.parametrize("recompute", list(Recompute), ids=lambda mode: mode.text)
def test_gradients_are_as_exact_as_those_of_whole_samples(
    device: torch.device, shape: ModelShape, recompute: Recompute
) -> None:
    exact = flat(unsplit_gradients(SAMPLES, padded(SAMPLES, shape), shape=shape).tensors)
    found = gradients(device, shape, [replace(each, recompute=recompute) for each in sliced()])
    unsliced = gradients(device, shape, [packed(SAMPLES, fill=5)])
    assert (found - exact).norm() <= 2 * (unsliced - exact).norm()


@every_shape
def test_no_slice_makes_the_host_wait(device: torch.device, shape: ModelShape) -> None:
    rank = rank_on(device, shape, torch.bfloat16)
    rank.tokens.start_iteration(SAMPLES)
    run(rank, sliced())  # warms up
    torch.cuda.synchronize(device)
    with no_waiting():  # or else this raises
        run(rank, sliced())
    assert rank.stage.finish_iteration().loss > 0
