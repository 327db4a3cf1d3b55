"""Pairs of ranks measure their link over a transport that fails where NCCL would hang."""

from itertools import product

import pytest
import torch
from tests.examples.local_ranks import LocalNetwork, LocalTransport, LocalWorld
from torch import Tensor

from dynapipe_hpc.experiment.profile.profile import paired_rank, transfer_ms
from dynapipe_hpc.experiment.rank.channels import neighbours
from dynapipe_hpc.plan.cluster import Cluster
from dynapipe_hpc.plan.instruction import Payload


@pytest.mark.parametrize(("n_replicas", "n_stages"), list(product((1, 2, 3), (1, 2, 3, 4, 5))))
def test_pairs_are_ranks_that_the_transport_connects(n_replicas: int, n_stages: int) -> None:
    cluster = Cluster(n_replicas=n_replicas, n_stages=n_stages, device_memory_bytes=1)
    peers = {rank: paired_rank(rank, n_stages) for rank in range(cluster.n_ranks)}
    pairs = {rank: peer for rank, peer in peers.items() if peer is not None}
    assert all(peer in neighbours(cluster, rank) for rank, peer in pairs.items())
    assert all(pairs[peer] == rank for rank, peer in pairs.items())
    assert len(pairs) == n_replicas * 2 * (n_stages // 2)


class TransferClock:
    """A clock by which every transfer takes 3 ms; the host may look at any time."""

    def __init__(self) -> None:
        self.n_transfers = 0
        self.n_looks = 0

    def now(self) -> int:
        self.n_looks += 1
        return self.n_transfers

    def has_passed(self, moment: int) -> bool:
        return moment <= self.n_transfers

    def ms_between(self, start: int, end: int) -> float:
        return 3.0 * (end - start)


class CountingTransport(LocalTransport[Tensor]):
    """Tells a clock of every tensor that goes either way."""

    def __init__(self, network: LocalNetwork[Tensor], rank: int, clock: TransferClock) -> None:
        super().__init__(network, rank)
        self._clock = clock
        self.directions: set[tuple[bool, Payload]] = set()

    def start_send(self, microbatch: int, payload: Payload, peer: int, tensor: Tensor) -> None:
        self.directions.add((peer > self._rank, payload))
        super().start_send(microbatch, payload, peer, tensor)

    def wait_send(self, microbatch: int, payload: Payload) -> None:
        super().wait_send(microbatch, payload)
        self._clock.n_transfers += 1

    def wait_receive(self, microbatch: int, payload: Payload) -> Tensor:
        received = super().wait_receive(microbatch, payload)
        self._clock.n_transfers += 1
        return received


def test_a_transfer_takes_half_a_round_trip_of_several_in_a_row() -> None:
    world = LocalWorld(2)
    network = LocalNetwork[Tensor](world, torch.empty)
    clocks = [TransferClock(), TransferClock()]
    ends = [CountingTransport(network, rank, clock) for rank, clock in enumerate(clocks)]
    found = world.run(
        lambda rank: transfer_ms(ends[rank], rank, 1 - rank, torch.zeros(16), clock=clocks[rank])
    )
    assert found == [3.0, 3.0]
    for clock in clocks:
        assert clock.n_looks < clock.n_transfers / 2
    assert ends[0].directions == {(True, Payload.ACTIVATION)}
    assert ends[1].directions == {(False, Payload.GRADIENT)}
