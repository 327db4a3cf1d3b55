"""Collectives over torch.distributed: NCCL between GPUs, gloo between processors."""

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor, distributed
from torch.distributed import ProcessGroup

from dynapipe_hpc.executor.transport.torch_groups import TorchGroups
from dynapipe_hpc.plan.instruction import Payload
from dynapipe_hpc.training.collectives import done

# Since torch 2.13 these functions have new names, and the old names warn.
_reduce_scatter: Callable[..., Any] = (
    getattr(distributed, "reduce_scatter_single", None) or distributed.reduce_scatter_tensor
)
_all_gather: Callable[..., Any] = (
    getattr(distributed, "all_gather_single", None) or distributed.all_gather_into_tensor
)


class TorchCollectives:
    """A rank's `Collectives` over process groups of torch.distributed.

    NCCL runs them on its own streams; the compute stream waits for them, the host does not.
    """

    sums_beside_work = True

    def __init__(self, groups: TorchGroups) -> None:
        """Takes part as the rank that opened the groups."""
        cluster, rank = groups.cluster, groups.rank
        self.replica = cluster.replica_of(rank)
        self.stage = cluster.stage_of(rank)
        self.n_stages = cluster.n_stages
        self.n_replicas = cluster.n_replicas
        self.shard = cluster.shard_of(rank)
        self.n_shards = cluster.n_shards
        self.sequence_parallel = cluster.sequence_parallel
        self._groups = groups

    def sum_over_replicas(self, values: Tensor) -> None:
        """All-reduce: replaces `values` with their sum over replicas."""
        _all_reduce(values, self._groups.replicas)

    def start_sum_over_replicas(self, values: Tensor) -> Callable[[], None]:
        """Starts the all-reduce; on GPUs, waiting for it blocks only the device."""
        if self._groups.replicas is None:
            return done
        work = distributed.all_reduce(values, group=self._groups.replicas, async_op=True)

        def wait() -> None:
            work.wait()

        return wait

    def sum_share_over_replicas(self, values: Tensor) -> None:
        """Reduce-scatter: replaces only this replica's share of `values`, with its sum."""
        if self._groups.replicas is None:
            return
        share = self._share(values)
        total = torch.empty_like(share)
        _reduce_scatter(total, values, group=self._groups.replicas)
        share.copy_(total)

    def gather_shares(self, values: Tensor) -> None:
        """All-gather: replaces every share of `values` with that of its replica."""
        if self._groups.replicas is not None:
            _all_gather(values, self._share(values), group=self._groups.replicas)

    def sum_over_shards(self, values: Tensor) -> Tensor:
        """All-reduce over shards, not in place."""
        total = values.to(self._wide(values), copy=True, memory_format=torch.contiguous_format)
        _all_reduce(total, self._groups.shards)
        return total.to(values.dtype)

    def sum_own_over_shards(self, values: Tensor) -> Tensor:
        """Reduce-scatter over shards, not in place."""
        if self._groups.shards is None:
            return values
        parts = values.to(self._wide(values)).contiguous()
        shard = torch.empty_like(parts.chunk(self.n_shards)[0])
        _reduce_scatter(shard, parts, group=self._groups.shards)
        return shard.to(values.dtype)

    def gather_over_shards(self, values: Tensor) -> Tensor:
        """All-gather over shards."""
        if self._groups.shards is None:
            return values
        gathered = values.new_empty((self.n_shards * len(values), *values.shape[1:]))
        _all_gather(gathered, values.contiguous(), group=self._groups.shards)
        return gathered

    def sum_within_replica(self, values: Tensor) -> None:
        """All-reduce: replaces `values` with their sum over the ranks of this replica."""
        _all_reduce(values, self._groups.same_replica)

    def sum_over_copies(self, values: Tensor, stages: Sequence[int]) -> None:
        """Reduce: sums copies of weights on the first stage that holds them."""
        first, *others = self._ranks_of(stages)
        if self.stage != stages[0]:
            self._send(values, first)
            return
        for other in others:
            part = torch.empty_like(values)
            self._receive(part, other)
            values += part

    def copy_from_first(self, values: Tensor, stages: Sequence[int]) -> None:
        """Broadcast: replaces `values` with those of the first of `stages`."""
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
        """Type in which shards add numbers up."""
        is_wide = self._groups.cluster.shard_sums == "float32"
        return torch.promote_types(values.dtype, torch.float32) if is_wide else values.dtype

    def _share(self, values: Tensor) -> Tensor:
        return values.view(self.n_replicas, -1)[self.replica]


def _all_reduce(values: Tensor, group: ProcessGroup | None) -> None:
    """All-reduce in place; None is a group of one member here, but all ranks for torch."""
    if group is not None:
        distributed.all_reduce(values, group=group)
