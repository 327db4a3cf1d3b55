"""A stage on a GPU: what it computes, also of preference pairs, and that nobody waits for it."""

from collections.abc import Sequence
from dataclasses import replace

import pytest
import torch
from tests.examples.local_ranks import LocalNetwork, LocalWorld
from tests.examples.planned_iteration import planned_iteration
from tests.examples.preference_training import ALONE, DPO, references_of
from tests.examples.training_case import (
    LLAMA_SHAPE,
    SHAPE,
    T5_SHAPE,
    Rank,
    make_rank,
    random_samples,
    random_split,
    unsplit_training,
)
from tests.gpu.no_waiting import no_waiting
from tests.gpu.test_attention import flat, shape_with

from dynapipe_hpc.architecture.model_shape import ModelShape
from dynapipe_hpc.data.microbatch import MicroBatch, Recompute
from dynapipe_hpc.data.sample import Sample
from dynapipe_hpc.executor.run import IterationTrace, launch_plan
from dynapipe_hpc.experiment.rank.devices import CudaClock
from dynapipe_hpc.plan.cluster import Cluster
from dynapipe_hpc.planner.batch.packed_shapes import packed_microbatch
from dynapipe_hpc.training.allocated_memory import reserve
from dynapipe_hpc.training.collectives import SingleRankCollectives
from dynapipe_hpc.training.objective import PreferenceLoss

pytestmark = pytest.mark.gpu

CLUSTER = Cluster(device_memory_bytes=1_000_000)
BATCHES = [random_samples(seed) for seed in (1, 2, 3)]
every_family = pytest.mark.parametrize("shape", [SHAPE, T5_SHAPE], ids=lambda s: s.family)


def rank_on(device: torch.device, shape: ModelShape, dtype: torch.dtype = torch.float64) -> Rank:
    return make_rank(CLUSTER, 0, SingleRankCollectives(), shape=shape, dtype=dtype, device=device)


def step(rank: Rank, shape: ModelShape, samples: Sequence[Sample], k: int) -> IterationTrace:
    microbatches = random_split(samples, 5, k, tuple(Recompute), shape)
    return execute(rank, shape, samples, microbatches)


def execute(
    rank: Rank, shape: ModelShape, samples: Sequence[Sample], microbatches: list[MicroBatch]
) -> IterationTrace:
    (plan,) = planned_iteration([microbatches], CLUSTER, shape, "1f1b")
    transport = LocalNetwork[torch.Tensor](LocalWorld(1), torch.empty).transport(0)
    rank.tokens.start_iteration(samples)
    return launch_plan(plan, rank.stage, transport, CudaClock()).finish()


@every_family
def test_three_steps_give_the_weights_of_the_processor(
    device: torch.device, shape: ModelShape
) -> None:
    rank, expected = rank_on(device, shape), unsplit_training(BATCHES, shape)
    traces = [step(rank, shape, samples, k) for k, samples in enumerate(BATCHES)]
    assert [trace.loss for trace in traces] == pytest.approx(expected.losses, rel=1e-9)
    assert [trace.gradient_norm for trace in traces] == pytest.approx(expected.norms, rel=1e-9)
    for name, weights in rank.weights().items():
        torch.testing.assert_close(
            weights.cpu(), expected.tensors[name], rtol=1e-8, atol=1e-9, msg=name
        )


@every_family
def test_instructions_have_times_in_order(device: torch.device, shape: ModelShape) -> None:
    trace = step(rank_on(device, shape), shape, BATCHES[0], 0)
    assert all(a <= b for a, b in zip(trace.start_ms, trace.end_ms, strict=True))
    assert list(trace.start_ms) == sorted(trace.start_ms)
    assert trace.end_ms[-1] > 0


@every_family
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_the_host_does_not_wait_within_an_iteration(
    device: torch.device, shape: ModelShape, dtype: torch.dtype
) -> None:
    rank = rank_on(device, shape, dtype)
    step(rank, shape, BATCHES[0], 0)  # warms up
    stage = rank.stage
    microbatches = random_split(BATCHES[1], 5, 1, tuple(Recompute), shape)
    rank.tokens.start_iteration(BATCHES[1])
    torch.cuda.synchronize(device)
    with no_waiting():
        for i, microbatch in enumerate(microbatches):
            stage.load(i, microbatch)
            stage.forward(i, None)
            stage.backward(i, None)
        stage.reduce_gradients()
        stage.step_optimizer()
    assert stage.finish_iteration().gradient_norm > 0


def device_calls(device: torch.device) -> tuple[int, int]:
    """Number of calls that take memory from the device or give it back, which waits for it."""
    counts = torch.cuda.memory_stats(device)
    return counts["num_device_alloc"], counts["num_device_free"]


@every_family
def test_iterations_ask_the_device_for_no_memory(device: torch.device, shape: ModelShape) -> None:
    rank = rank_on(device, shape, torch.float32)
    reserve(device, torch.cuda.memory_reserved(device) + 1_000_000_000)
    step(rank, shape, BATCHES[0], 0)  # libraries take memory of their own once
    before = device_calls(device)
    for k, samples in enumerate(BATCHES):
        step(rank, shape, samples, k)
    assert device_calls(device) == before


def test_reserved_memory_is_there_for_tensors(device: torch.device) -> None:
    reserve(device, torch.cuda.memory_reserved(device) + 2_000_000_000)
    before = device_calls(device)
    held = [torch.empty(n, dtype=torch.uint8, device=device) for n in (10**9, 5 * 10**8, 3, 10**6)]
    assert device_calls(device) == before
    assert sum(tensor.nbytes for tensor in held) > 1.5e9


def test_more_memory_than_the_device_has_is_refused(device: torch.device) -> None:
    with pytest.raises(MemoryError, match="more are needed, but cuda:0 has"):
        reserve(device, 10**15)


@every_family
def test_a_peak_counts_what_passes_need_while_they_run(
    device: torch.device, shape: ModelShape
) -> None:
    rank = rank_on(device, shape)
    step(rank, shape, BATCHES[0], 0)
    one = [replace(m) for m in random_split(BATCHES[1], 1, 1, (Recompute.NONE,), shape)]
    many = random_split(BATCHES[1], 8, 1, (Recompute.NONE,), shape)
    peaks = [execute(rank, shape, BATCHES[1], split) for split in (one, many)]
    assert all(trace.peak_has_transient for trace in peaks)
    assert peaks[0].peak_bytes > peaks[1].peak_bytes > 0


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
    rank.stage.load(0, packed_microbatch(PAIRS, Recompute.NONE))
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
