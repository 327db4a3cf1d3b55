"""Sums over ranks through torch.distributed: NCCL between GPUs, gloo between processors."""

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor, distributed

from dynapipe_hpc.executor.transport.torch_groups import TorchGroups

# From torch 2.13 on they have new names, and the old ones warn.
_reduce_scatter: Callable[..., Any] = (
    getattr(distributed, "reduce_scatter_single", None) or distributed.reduce_scatter_tensor
)
_all_gather: Callable[..., Any] = (
    getattr(distributed, "all_gather_single", None) or distributed.all_gather_into_tensor
)


class TorchCollectives:
    """A rank's `Collectives` over process groups.

    NCCL runs them on streams of their own, which the computation waits for; the host does not.
    """

    sums_beside_work = True

    def __init__(self, groups: TorchGroups) -> None:
        """Takes part as the rank that the groups were opened by."""
        cluster, rank = groups.cluster, groups.rank
        self.replica = cluster.replica_of(rank)
        self.stage = cluster.stage_of(rank)
        self.n_stages = cluster.n_stages
        self.n_replicas = cluster.n_replicas
        self.shard = cluster.shard_of(rank)
        self.n_shards = cluster.n_shards
        self._groups = groups

    def sum_over_replicas(self, values: Tensor) -> None:
        """Replaces `values` by their sum over replicas."""
        distributed.all_reduce(values, group=self._groups.replicas)

    def start_sum_over_replicas(self, values: Tensor) -> Callable[[], None]:
        """Starts the sum; on GPUs only the device waits for its end."""
        work = distributed.all_reduce(values, group=self._groups.replicas, async_op=True)

        def wait() -> None:
            work.wait()

        return wait

    def sum_share_over_replicas(self, values: Tensor) -> None:
        """Replaces this replica's share of `values` by its sum over replicas, and no other."""
        share = self._share(values)
        total = torch.empty_like(share)
        _reduce_scatter(total, values, group=self._groups.replicas)
        share.copy_(total)

    def gather_shares(self, values: Tensor) -> None:
        """Replaces every share of `values` by what its replica has there."""
        share = self._share(values)
        _all_gather(values, share, group=self._groups.replicas)

    def sum_over_shards(self, values: Tensor) -> Tensor:
        """The sum of a tensor over shards; of 16-bit numbers in float32, then rounded."""
        wide = torch.promote_types(values.dtype, torch.float32)
        total = values.to(wide, copy=True, memory_format=torch.contiguous_format)
        distributed.all_reduce(total, group=self._groups.shards)
        return total.to(values.dtype)

    def sum_within_replica(self, values: Tensor) -> None:
        """Replaces `values` by their sum over the ranks of this replica."""
        distributed.all_reduce(values, group=self._groups.same_replica)

    def sum_over_copies(self, values: Tensor, stages: Sequence[int]) -> None:
        """Adds up copies of weights on the first stage that holds them."""
        first, *others = self._ranks_of(stages)
        if self.stage != stages[0]:
            self._groups.same_shard.send([values], first, 0).wait()
            return
        for other in others:
            part = torch.empty_like(values)
            self._groups.same_shard.recv([part], other, 0).wait()
            values += part

    def copy_from_first(self, values: Tensor, stages: Sequence[int]) -> None:
        """Replaces `values` by those of the first of `stages`."""
        first, *others = self._ranks_of(stages)
        if self.stage != stages[0]:
            self._groups.same_shard.recv([values], first, 0).wait()
            return
        for other in others:
            self._groups.same_shard.send([values], other, 0).wait()

    def _ranks_of(self, stages: Sequence[int]) -> list[int]:
        """Stages of this replica, as plans number ranks."""
        cluster = self._groups.cluster
        return [cluster.plan_of(cluster.rank_of(self.replica, stage)) for stage in stages]

    def _share(self, values: Tensor) -> Tensor:
        return values.view(self.n_replicas, -1)[self.replica]
