"""Small tied weights take one sum, and only the embedding goes from stage to stage."""

import pytest
import torch
from tests.examples.local_ranks import LocalCollectives, LocalSums, LocalWorld
from tests.examples.training_case import T5_SHAPE, make_rank
from torch import Tensor

from dynapipe_hpc.plan.cluster import Cluster

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
