"""Sums over replicas that start before the backward pass ends, and give the same bits."""

import gc
import weakref
from collections.abc import Callable

import pytest
import torch
from tests.examples.local_ranks import LocalCollectives, LocalSums, LocalWorld
from torch import Tensor, nn

from dynapipe_hpc.plan.cluster import Cluster
from dynapipe_hpc.training.collectives import SingleRankCollectives
from dynapipe_hpc.training.config import TrainingConfig
from dynapipe_hpc.training.flat_parameters import FlatParameters
from dynapipe_hpc.training.optimizer import Optimizer
from dynapipe_hpc.training.overlapped_reduce import OverlappedGradientReduce

WIDTH = 8
CONFIG = TrainingConfig(iterations=3, learning_rate=0.1, warmup_iterations=1, dtype="float64")


class TwoAlike(SingleRankCollectives):
    """A replica whose twin always has the same gradients; notes when matrices are added up."""

    def __init__(self) -> None:
        self.events: list[str] = []

    def sum_over_replicas(self, values: Tensor) -> None:
        values *= 2

    def start_sum_over_replicas(self, values: Tensor) -> Callable[[], None]:
        self.events.append(f"sum from {values.storage_offset() // WIDTH**2}")
        values *= 2
        return lambda: self.events.append("wait")


def layers(dtype: torch.dtype = torch.float64) -> nn.Sequential:
    torch.manual_seed(1)
    return nn.Sequential(*(nn.Linear(WIDTH, WIDTH) for _ in range(4))).to(dtype)


def backward(module: nn.Module, seed: int = 0) -> None:
    stream = torch.Generator().manual_seed(seed)
    dtype = next(module.parameters()).dtype
    inputs = torch.randn(3, WIDTH, generator=stream, dtype=torch.float64).to(dtype)
    module(inputs).square().sum().backward()


def watched(
    module: nn.Sequential, collectives: TwoAlike, n_tied: int = 0
) -> tuple[FlatParameters, OverlappedGradientReduce]:
    own = FlatParameters(module)
    matrices = [p for p in module.parameters() if p.ndim == 2]
    sums = OverlappedGradientReduce(
        own, collectives, matrices[:n_tied], 2 * WIDTH**2 * own.gradients.itemsize
    )
    for i, matrix in enumerate(matrices):
        matrix.register_post_accumulate_grad_hook(  # type: ignore[no-untyped-call]
            lambda _, name=f"gradient {i}": collectives.events.append(name)
        )
    return own, sums


@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16])
def test_the_last_layers_are_added_up_while_the_first_still_compute(dtype: torch.dtype) -> None:
    module, expected, collectives = layers(dtype), layers(dtype), TwoAlike()
    own, sums = watched(module, collectives)
    reference = FlatParameters(expected)
    for seed in (0, 1):
        backward(module, seed)
        backward(expected, seed)
        assert not any(event.startswith("sum") for event in collectives.events)
    collectives.events.clear()
    sums.expect_last_backward(module.parameters())
    backward(module, 2)
    backward(expected, 2)
    sums.finish()
    order = ["gradient 3", "sum from 2", "gradient 2", "gradient 1", "sum from 0", "gradient 0"]
    assert collectives.events == [*order, "wait", "wait"]
    assert torch.equal(own.gradients, 2 * reference.gradients)


def test_sums_wait_only_for_gradients_that_the_second_half_of_a_split_pass_adds() -> None:
    module, collectives = layers(), TwoAlike()
    own, sums = watched(module, collectives)
    matrices = [p for p in module.parameters() if p.ndim == 2]
    later = {matrices[i]: torch.full((WIDTH, WIDTH), 1.0 + i).double() for i in (2, 0)}
    backward(module)  # the rest
    expected = own.gradients.clone()
    for matrix, gradient in later.items():
        start = matrix.storage_offset()
        expected[start : start + WIDTH**2] += gradient.flatten()
    collectives.events.clear()
    sums.expect_last_backward(later)
    assert collectives.events == []
    for matrix, gradient in later.items():
        torch.autograd.backward(matrix, gradient)
    sums.finish()
    order = ["sum from 2", "gradient 2", "sum from 0", "gradient 0"]
    assert collectives.events == [*order, "wait", "wait"]
    assert torch.equal(own.gradients, 2 * expected)


def test_sums_start_at_once_if_the_second_half_of_a_split_pass_adds_nothing() -> None:
    module, collectives = layers(), TwoAlike()
    _, sums = watched(module, collectives)
    backward(module)
    collectives.events.clear()
    sums.expect_last_backward([])
    assert collectives.events == ["sum from 2", "sum from 0"]
    sums.finish()
    assert collectives.events[2:] == ["wait", "wait"]


def test_weights_that_other_stages_add_to_wait_for_them() -> None:
    module, collectives = layers(), TwoAlike()
    own, sums = watched(module, collectives, n_tied=1)
    sums.expect_last_backward(module.parameters())
    backward(module)
    assert [event for event in collectives.events if "sum" in event] == ["sum from 2"]
    expected = 2 * own.gradients
    summed = slice(2 * WIDTH**2, own.n_decaying)
    expected[summed] = own.gradients[summed]
    sums.finish()
    assert torch.equal(own.gradients, expected)


@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16])
def test_nothing_outlives_a_stage_that_is_no_longer_used(dtype: torch.dtype) -> None:
    module, collectives = layers(dtype), TwoAlike()
    collectives.n_replicas, collectives.sums_beside_work = 2, True
    optimizer = Optimizer(module, CONFIG, collectives)
    optimizer.expect_last_backward(module.parameters())
    backward(module)
    optimizer.reduce_gradients()
    assert "wait" in collectives.events  # sums have started early
    flat = optimizer.parameters
    held = [weakref.ref(each) for each in (*module.parameters(), flat.weights, flat.gradients)]
    del module, optimizer, flat
    gc.collect()
    assert [each() for each in held if each() is not None] == []


@pytest.mark.parametrize("zero_stage", [0, 1])
def test_a_step_gives_the_same_bits_whether_sums_start_early_or_not(zero_stage: int) -> None:
    cluster = Cluster(n_replicas=3, device_memory_bytes=1)

    def trained(early: bool) -> list[Tensor]:
        world = LocalWorld(cluster.n_ranks)
        local = LocalSums(world, cluster)
        modules = [layers() for _ in range(cluster.n_ranks)]  # threads share what is random

        def train(rank: int) -> Tensor:
            collectives, module = LocalCollectives(local, rank), modules[rank]
            collectives.sums_beside_work = early
            optimizer = Optimizer(module, CONFIG, collectives, shares_state=zero_stage == 1)
            for step in range(3):
                backward(module, 10 * step + rank)
                optimizer.expect_last_backward(module.parameters())
                backward(module, 100 * step + rank)
                optimizer.reduce_gradients()
                optimizer.step().read()
            return optimizer.parameters.weights

        return world.run(train)

    for early, late in zip(trained(early=True), trained(early=False), strict=True):
        assert torch.equal(early, late)
