"""Small tied weights take one sum, and only the embedding goes from stage to stage."""

from collections.abc import Sequence

import pytest
import torch
from tests.examples.local_ranks import LocalCollectives, LocalSums, LocalWorld
from tests.examples.training_case import T5_SHAPE, make_rank
from torch import Tensor

from dynapipe_hpc.plan.cluster import Cluster

CLUSTER = Cluster(n_stages=6, n_shards=2, device_memory_bytes=1)
BIASES = ("encoder_bias.weight", "decoder_bias.weight")


class Counting(LocalCollectives):
    """Notes which stages exchange copies, and how much a replica sums."""

    def __init__(self, sums: LocalSums, rank: int) -> None:
        super().__init__(sums, rank)
        self.exchanged: list[tuple[int, ...]] = []
        self.summed: list[int] = []

    def sum_over_copies(self, values: Tensor, stages: Sequence[int]) -> None:
        self.exchanged.append(tuple(stages))
        super().sum_over_copies(values, stages)

    def sum_within_replica(self, values: Tensor) -> None:
        self.summed.append(values.numel())
        super().sum_within_replica(values)


def test_biases_of_all_stages_are_one_sum_and_the_embedding_is_not() -> None:
    world = LocalWorld(CLUSTER.n_ranks)
    sums = LocalSums(world, CLUSTER)

    def gradients(rank: int) -> tuple[Counting, dict[str, float]]:
        collectives = Counting(sums, rank)
        own = make_rank(CLUSTER, collectives.stage, collectives, shape=T5_SHAPE)
        found = own.optimizer.parameters.gradient_of
        for parameter in own.module.parameters():
            assert parameter.grad is not None
            parameter.grad.fill_(1.0 + collectives.shard)
        own.optimizer.reduce_gradients()
        held = own.module.named_parameters()
        sums_of = {name: found[p].view(-1)[0].item() for name, p in held if p in found}
        return collectives, sums_of

    first_of_side = {BIASES[0]: 0, BIASES[1]: 3}
    for collectives, found in world.run(gradients):
        scale = 1.0 + collectives.shard
        for name, owner in first_of_side.items():
            expected = {name: 3 * scale} if collectives.stage == owner else {}
            assert {n: s for n, s in found.items() if n == name} == expected
        holds = collectives.stage in (0, 3, 5)
        assert collectives.exchanged == ([(0, 3, 5)] if holds else [])
        if collectives.stage == 0:
            assert found["embedding.weight"] == 3 * scale
        # Two biases of 32 buckets for 4 heads, from two shards.
        assert collectives.summed == [2 * 32 * 4]


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
