"""Sums over replicas that start before the backward pass ends, and copies of tied weights."""

import gc
import weakref
from collections.abc import Callable

import pytest
import torch
from tests.examples.local_ranks import LocalCollectives, LocalSums, LocalWorld
from tests.examples.training_case import T5_SHAPE, make_rank
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


CLUSTER = Cluster(n_stages=6, n_shards=2, device_memory_bytes=1)
BIASES = ("encoder_bias.weight", "decoder_bias.weight")


@pytest.mark.parametrize("gradient", [0.0, 3.0])
def test_copies_get_the_owners_bits(gradient: float) -> None:
    world = LocalWorld(CLUSTER.n_ranks)
    sums = LocalSums(world, CLUSTER)

    def biases(rank: int) -> dict[str, Tensor]:
        collectives = LocalCollectives(sums, rank)
        own = make_rank(CLUSTER, collectives.stage, collectives, shape=T5_SHAPE)
        for name, parameter in own.module.named_parameters():
            if name in BIASES:
                parameter.data.fill_(0.1 * (1 + rank))
                assert parameter.grad is not None
                parameter.grad.fill_(gradient)
        own.optimizer.reduce_gradients()
        own.optimizer.step()
        return {name: weight for name, weight in own.weights().items() if name in BIASES}

    found = world.run(biases)
    for shard in range(2):
        for stages, name in (((0, 1, 2), BIASES[0]), ((3, 4, 5), BIASES[1])):
            first, *others = (found[CLUSTER.rank_of(0, s, shard)][name] for s in stages)
            assert first.any()
            assert all(torch.equal(first, other) for other in others)
