"""Transfers and collectives over torch.distributed: NCCL between GPUs, gloo between processors."""

import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import timedelta
from itertools import count
from typing import Any, Literal

import torch
from torch import Tensor, distributed
from torch._C._distributed_c10d import Store
from torch.distributed import ProcessGroup, Work

from dynapipe_hpc.executor.transport.buffers import Buffers
from dynapipe_hpc.executor.transport.transport import Place, TransportError
from dynapipe_hpc.plan.cluster import Cluster
from dynapipe_hpc.plan.instruction import Payload
from dynapipe_hpc.training.collectives import done

Backend = Literal["nccl", "gloo", "fake"]

TRANSFER_CTAS = 4
"""Maximum number of blocks of a transfer's kernel. A kernel that waits for data occupies
multiprocessors, and NCCL would start 16 blocks for a tensor of a few megabytes."""


@dataclass(frozen=True, slots=True)
class TorchGroups:
    """Process groups that a rank belongs to; a group that would have one member is None.

    Attributes:
        transfers: One group per payload, of the ranks with the same shard number in the order of
            plans; empty if there is one stage and one replica. A pair of ranks has a communicator
            and a stream per group, so that a late gradient does not hold up an activation.
        replicas: Data-parallel ranks: the same shard of the same stage, by replica.
        shards: Tensor-parallel ranks: the same stage of the same replica, by shard.
        same_replica: Ranks of the same replica.
        store: Store of the rendezvous; the groups may call it as long as they exist.
    """

    cluster: Cluster
    rank: int
    transfers: Mapping[Payload, ProcessGroup]
    replicas: ProcessGroup | None
    shards: ProcessGroup | None
    same_replica: ProcessGroup | None
    store: Store


def open_groups(
    backend: Backend, cluster: Cluster, rank: int, store: Store, *, timeout_s: float
) -> TorchGroups:
    """Opens the groups of a cluster; called by all ranks together, one cluster at a time.

    `timeout_s`: Time after which torch itself ends a waiting rank, in seconds from the start of the
    operation that it waits for.
    """
    # By default, NCCL leaves dumps in /tmp, and its threads ask the store as long as it exists. The
    # watchdog of this package reports more.
    os.environ.setdefault("TORCH_NCCL_DUMP_ON_TIMEOUT", "0")
    # By default, torch ends the process if its own watchdog gives no sign for 480 s.
    os.environ.setdefault("TORCH_NCCL_HEARTBEAT_TIMEOUT_SEC", str(2 * int(timeout_s)))
    timeout = timedelta(seconds=timeout_s)
    distributed.init_process_group(
        backend, store=store, rank=rank, world_size=cluster.n_ranks, timeout=timeout
    )

    def own_group(part_of: Callable[[int], int], *, transfers: bool = False) -> ProcessGroup | None:
        """The group of this rank's part; None if the equally large parts have one member each."""
        members = [each for each in range(cluster.n_ranks) if part_of(each) == part_of(rank)]
        if len(members) == 1:
            return None
        options = _transfer_options(backend, timeout) if transfers else None
        # Without local synchronization, every rank would have to create the groups of all parts.
        group = distributed.new_group(
            members, timeout=timeout, pg_options=options, use_local_synchronization=True
        )
        if not isinstance(group, ProcessGroup):
            raise TypeError(f"torch left rank {rank} out of its own group")
        return group

    pairs = {payload: own_group(cluster.shard_of, transfers=True) for payload in Payload}
    return TorchGroups(
        cluster,
        rank,
        transfers={payload: group for payload, group in pairs.items() if group is not None},
        replicas=own_group(lambda r: cluster.stage_of(r) * cluster.n_shards + cluster.shard_of(r)),
        shards=own_group(cluster.plan_of),
        same_replica=own_group(cluster.replica_of),
        store=store,
    )


def close_groups() -> None:
    """Closes all groups; called by all ranks together."""
    distributed.destroy_process_group()


def _transfer_options(backend: Backend, timeout: timedelta) -> Any:
    if backend != "nccl":
        return None
    options = distributed.ProcessGroupNCCL.Options(is_high_priority_stream=True)
    options._timeout = timeout  # torch warns if it differs from the group's timeout
    options.config.max_ctas = TRANSFER_CTAS
    return options


_Key = tuple[int, Payload]


class TorchTransport:
    """A rank's `Transport` over process groups of torch.distributed, one per payload.

    Messages of a pair of ranks match in the order in which each side starts them, and plans make
    sure that both sides have the same order. NCCL needs this in each group, as a pair has one
    stream there. A transfer runs after all work launched before it, so a tensor is sent after it is
    computed, and a slot is refilled after it is read. Waiting makes the compute stream wait on the
    device; with gloo, which has no streams, this thread waits.

    Tensors are sent from buffers of the transport. The memory of a sent tensor could be allocated
    again only when the host sees that the stream has passed the send, perhaps an iteration later; a
    buffer is reused in the order of the streams.

    Unlike MPI messages, these carry no tag. Ranks that disagree on a size hang or end, so plans
    are compared before they are executed.
    """

    def __init__(
        self, groups: Mapping[Payload, ProcessGroup], device: torch.device, dtype: torch.dtype
    ) -> None:
        self._groups = groups
        self._sends: dict[_Key, tuple[Work, int]] = {}  # with the number of its buffer
        self._receives: dict[_Key, tuple[Work, Tensor]] = {}
        self._slots = Buffers(dtype, device)
        self._sent = Buffers(dtype, device)

    def connect(self, peers: Iterable[int]) -> None:
        """Exchanges numbers with peers, because the first transfer of a pair is slow.

        The first transfer also allocates memory, for each group and direction. Activations are sent
        to higher ranks, gradients to lower ranks.

        `peers`: Peers of this rank, which must be mutual, in an order in which all ranks can
        connect at the same time without a deadlock.
        """
        for peer in peers:
            for payload, group in self._groups.items():
                number = self._slots.take(0, (1,)).zero_()
                goes_up = payload is Payload.ACTIVATION
                is_sender = (group.rank() < peer) == goes_up
                transfer = group.send if is_sender else group.recv
                _wait(transfer([number], peer, 0))
        self.clear()

    def start_send(self, microbatch: int, payload: Payload, peer: int, tensor: Tensor) -> None:
        in_use = {buffer for _, buffer in self._sends.values()}
        number = next(n for n in count() if n not in in_use)
        copy = self._sent.take(number, tuple(tensor.shape)).copy_(tensor)
        self._sends[microbatch, payload] = self._groups[payload].send([copy], peer, 0), number

    def wait_send(self, microbatch: int, payload: Payload) -> None:
        _wait(self._sends.pop((microbatch, payload))[0])

    def start_receive(
        self, microbatch: int, payload: Payload, peer: int, shape: tuple[int, ...], *, slot: int
    ) -> None:
        tensor = self._slots.take(slot, shape)
        work = self._groups[payload].recv([tensor], peer, 0)
        self._receives[microbatch, payload] = work, tensor

    def wait_receive(self, microbatch: int, payload: Payload) -> Tensor:
        """Waits; raises `TransportError` if the transfer failed, as when the peer is gone."""
        work, tensor = self._receives.pop((microbatch, payload))
        _wait(work)
        return tensor

    def clear(self) -> None:
        self._slots.clear()
        self._sent.clear()


def _wait(work: Work) -> None:
    try:
        work.wait()
    except RuntimeError as error:
        raise TransportError(f"a transfer failed: {error}") from error


# Since torch 2.13 these functions have new names, and the old names give warnings.
_reduce_scatter: Callable[..., Any] = (
    getattr(distributed, "reduce_scatter_single", None) or distributed.reduce_scatter_tensor
)
_all_gather: Callable[..., Any] = (
    getattr(distributed, "all_gather_single", None) or distributed.all_gather_into_tensor
)


class TorchCollectives(Place):
    """A rank's `Collectives` over process groups of torch.distributed.

    NCCL runs them on its own streams; the compute stream waits for them, the host does not.
    """

    sums_beside_work = True

    def __init__(self, groups: TorchGroups) -> None:
        """Takes part as the rank that opened the groups."""
        super().__init__(groups.cluster, groups.rank)
        self._groups = groups

    def sum_over_replicas(self, values: Tensor) -> None:
        _all_reduce(values, self._groups.replicas)

    def start_sum_over_replicas(self, values: Tensor) -> Callable[[], None]:
        if self._groups.replicas is None:
            return done
        work = distributed.all_reduce(values, group=self._groups.replicas, async_op=True)

        def wait() -> None:
            work.wait()

        return wait

    def sum_share_over_replicas(self, values: Tensor) -> None:
        if self._groups.replicas is None:
            return
        share = self._share(values)
        total = torch.empty_like(share)
        _reduce_scatter(total, values, group=self._groups.replicas)
        share.copy_(total)

    def gather_shares(self, values: Tensor) -> None:
        if self._groups.replicas is not None:
            _all_gather(values, self._share(values), group=self._groups.replicas)

    def sum_over_shards(self, values: Tensor) -> Tensor:
        total = values.to(self._wide(values), copy=True, memory_format=torch.contiguous_format)
        _all_reduce(total, self._groups.shards)
        return total.to(values.dtype)

    def sum_own_over_shards(self, values: Tensor) -> Tensor:
        if self._groups.shards is None:
            return values
        parts = values.to(self._wide(values)).contiguous()
        shard = torch.empty_like(parts.chunk(self.n_shards)[0])
        _reduce_scatter(shard, parts, group=self._groups.shards)
        return shard.to(values.dtype)

    def gather_over_shards(self, values: Tensor) -> Tensor:
        if self._groups.shards is None:
            return values
        gathered = values.new_empty((self.n_shards * len(values), *values.shape[1:]))
        _all_gather(gathered, values.contiguous(), group=self._groups.shards)
        return gathered

    def sum_within_replica(self, values: Tensor) -> None:
        _all_reduce(values, self._groups.same_replica)

    def sum_over_copies(self, values: Tensor, stages: Sequence[int]) -> None:
        first, *others = self._ranks_of(stages)
        if self.stage != stages[0]:
            self._send(values, first)
            return
        for other in others:
            part = torch.empty_like(values)
            self._receive(part, other)
            values += part

    def copy_from_first(self, values: Tensor, stages: Sequence[int]) -> None:
        first, *others = self._ranks_of(stages)
        if self.stage != stages[0]:
            self._receive(values, first)
            return
        for other in others:
            self._send(values, other)

    def _ranks_of(self, stages: Sequence[int]) -> list[int]:
        """Ranks of some stages of this replica, as plans number them."""
        cluster = self._groups.cluster
        return [cluster.plan_of(cluster.rank_of(self.replica, stage)) for stage in stages]

    def _send(self, values: Tensor, peer: int) -> None:
        self._groups.transfers[Payload.GRADIENT].send([values], peer, 0).wait()

    def _receive(self, values: Tensor, peer: int) -> None:
        self._groups.transfers[Payload.GRADIENT].recv([values], peer, 0).wait()

    def _wide(self, values: Tensor) -> torch.dtype:
        is_wide = self._groups.cluster.shard_sums == "float32"
        return torch.promote_types(values.dtype, torch.float32) if is_wide else values.dtype

    def _share(self, values: Tensor) -> Tensor:
        return values.view(self.n_replicas, -1)[self.replica]


def _all_reduce(values: Tensor, group: ProcessGroup | None) -> None:
    """All-reduce in place; None is a group of one member here, but all ranks for torch."""
    if group is not None:
        distributed.all_reduce(values, group=group)


Holders = Sequence[tuple[int, ...]]
"""Stages that hold each tied weight that is exchanged in pairs."""
