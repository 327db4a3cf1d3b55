"""Contracts of every `Transport` and `Collectives`; over several processes in tests/mpi."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

import pytest
import torch
from mpi4py import MPI
from tests.examples.local_ranks import LocalCollectives, LocalNetwork, LocalSums, LocalWorld
from tests.examples.transports import check_collectives, gloo_ends
from torch import Tensor

from dynapipe_hpc.executor.transport.mpi import MpiCollectives, MpiTransport
from dynapipe_hpc.executor.transport.transport import Transport
from dynapipe_hpc.plan.cluster import Cluster
from dynapipe_hpc.plan.instruction import Payload
from dynapipe_hpc.training.collectives import SingleRankCollectives

CPU = torch.device("cpu")
ACTIVATION, GRADIENT = Payload.ACTIVATION, Payload.GRADIENT


@dataclass
class Link:
    """Two ends; `source` and `target` are the peers that the ends name."""

    sender: Transport[Tensor]
    target: int
    receiver: Transport[Tensor]
    source: int

    def start_send(self, microbatch: int, payload: Payload, tensor: Tensor) -> None:
        self.sender.start_send(microbatch, payload, self.target, tensor)

    def start_receive(
        self, microbatch: int, payload: Payload, shape: tuple[int, ...], slot: int
    ) -> None:
        self.receiver.start_receive(microbatch, payload, self.source, shape, slot=slot)


def local_link() -> Link:
    network = LocalNetwork(LocalWorld(2), torch.empty)
    return Link(network.transport(0), 1, network.transport(1), 0)


def mpi_link() -> Link:
    transport = MpiTransport(MPI.COMM_SELF, torch.float32)
    return Link(transport, 0, transport, 0)


def gloo_link() -> Link:
    sender, receiver = gloo_ends()
    return Link(sender, 1, receiver, 0)


def copying_link() -> Link:
    transport = MpiTransport(MPI.COMM_SELF, torch.float32, CPU)
    return Link(transport, 0, transport, 0)


@pytest.fixture(params=[local_link, mpi_link, gloo_link, copying_link])
def link(request: pytest.FixtureRequest) -> Link:
    make: Callable[[], Link] = request.param
    return make()


def test_a_tensor_arrives_as_it_was_sent(link: Link) -> None:
    sent = torch.randn(2, 3, 4)
    link.start_send(0, ACTIVATION, sent)
    link.start_receive(0, ACTIVATION, (2, 3, 4), slot=0)
    assert torch.equal(link.receiver.wait_receive(0, ACTIVATION), sent)
    link.sender.wait_send(0, ACTIVATION)


def test_a_receive_may_start_before_its_send(link: Link) -> None:
    link.start_receive(0, GRADIENT, (5,), slot=0)
    link.start_send(0, GRADIENT, torch.arange(5.0))
    assert link.receiver.wait_receive(0, GRADIENT).tolist() == [0, 1, 2, 3, 4]
    link.sender.wait_send(0, GRADIENT)


def test_started_transfers_may_be_waited_for_in_any_order(link: Link) -> None:
    keys = [(0, ACTIVATION), (1, ACTIVATION), (0, GRADIENT)]
    for slot, (i, payload) in enumerate(keys):
        link.start_send(i, payload, torch.full((slot + 1,), float(slot)))
        link.start_receive(i, payload, (slot + 1,), slot)
    for slot, key in reversed(list(enumerate(keys))):
        assert link.receiver.wait_receive(*key).tolist() == [slot] * (slot + 1)
        link.sender.wait_send(*key)


def test_a_slot_takes_shapes_of_any_size_one_after_the_other(link: Link) -> None:
    for i, shape in enumerate([(2, 3), (1, 1), (40, 50)]):
        link.start_send(i, ACTIVATION, torch.full(shape, float(i)))
        link.start_receive(i, ACTIVATION, shape, slot=0)
        received = link.receiver.wait_receive(i, ACTIVATION)
        assert received.shape == shape
        assert received.is_contiguous()
        assert (received == i).all()
        link.sender.wait_send(i, ACTIVATION)


def test_a_cleared_transport_carries_the_next_plan(link: Link) -> None:
    for i in range(3):
        link.start_send(i, ACTIVATION, torch.full((i + 1, 2), float(i)))
        link.start_receive(i, ACTIVATION, (i + 1, 2), slot=0)
        assert (link.receiver.wait_receive(i, ACTIVATION) == i).all()
        link.sender.wait_send(i, ACTIVATION)
        link.receiver.clear()
        link.sender.clear()


def test_who_sends_need_not_keep_the_tensor(link: Link) -> None:
    for i in range(3):
        link.start_send(i, ACTIVATION, torch.full((1000,), float(i)))
    others = [torch.zeros(1000) for _ in range(9)]  # where memory that was freed is used again
    for i in range(3):
        link.start_receive(i, ACTIVATION, (1000,), slot=i)
    assert [link.receiver.wait_receive(i, ACTIVATION)[0].item() for i in range(3)] == [0, 1, 2]
    for i in range(3):
        link.sender.wait_send(i, ACTIVATION)
    assert not any(other.any() for other in others)


def test_a_tensor_stays_valid_while_other_slots_are_received_into(link: Link) -> None:
    kept = []
    for i in range(3):
        link.start_send(i, ACTIVATION, torch.full((4,), float(i)))
        link.start_receive(i, ACTIVATION, (4,), slot=i)
        kept.append(link.receiver.wait_receive(i, ACTIVATION))
        link.sender.wait_send(i, ACTIVATION)
    assert [tensor[0].item() for tensor in kept] == [0, 1, 2]


ALONE = Cluster(device_memory_bytes=1)


@pytest.mark.parametrize(
    ("n_replicas", "n_stages", "n_shards"),
    [(1, 1, 1), (1, 3, 1), (3, 1, 1), (2, 2, 1), (1, 1, 3), (2, 3, 2), (1, 2, 2), (2, 1, 2)],
)
def test_threads_keep_the_contract(n_replicas: int, n_stages: int, n_shards: int) -> None:
    cluster = Cluster(
        n_replicas=n_replicas, n_stages=n_stages, n_shards=n_shards, device_memory_bytes=1
    )
    world = LocalWorld(cluster.n_ranks)
    sums = LocalSums(world, cluster)
    world.run(lambda rank: check_collectives(LocalCollectives(sums, rank), cluster, rank))


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_shards_add_up_in_the_type_that_is_configured(dtype: torch.dtype) -> None:
    values = [1.0, *[2.0**-9] * 7]  # each too small to be added to one in 16 bits
    values[1:] = [2.0**-9 if dtype == torch.bfloat16 else 2.0**-12] * 7

    def total(config: Literal["float32", "dtype"]) -> float:
        cluster = Cluster(n_shards=8, shard_sums=config, device_memory_bytes=1)
        world = LocalWorld(8)
        sums = LocalSums(world, cluster)
        found = world.run(
            lambda rank: LocalCollectives(sums, rank).sum_over_shards(
                torch.tensor([values[rank]], dtype=dtype)
            )
        )
        assert len({float(each) for each in found}) == 1
        return float(found[0])

    assert total("float32") == float(torch.tensor(sum(values)).to(dtype)) > 1.0
    assert abs(total("dtype") - sum(values)) <= 0.02


def test_a_process_alone_keeps_the_contract() -> None:
    check_collectives(MpiCollectives(MPI.COMM_SELF, ALONE), ALONE, 0)
    check_collectives(SingleRankCollectives(), ALONE, 0)
