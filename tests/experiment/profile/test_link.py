"""Pairs of ranks measure their link over a transport that fails where NCCL would hang."""

import torch
from torch import Tensor

from dynapipe_hpc.executor.transport.local_transport import LocalNetwork
from dynapipe_hpc.executor.transport.local_world import LocalWorld
from dynapipe_hpc.experiment.profile.link import bounce_ms


def test_ranks_of_a_pair_agree_on_the_order_of_transfers() -> None:
    world = LocalWorld(2)
    network = LocalNetwork[Tensor](world, torch.empty)
    times = world.run(
        lambda rank: bounce_ms(network.transport(rank), rank, 1 - rank, torch.zeros(16))
    )
    assert all(time > 0 for time in times)
