"""Sums over ranks through MPI."""

from collections.abc import Callable, Sequence
from typing import Any

import torch
from mpi4py import MPI

from dynapipe_hpc.plan.cluster import Cluster
from dynapipe_hpc.training.collectives import done

# Only what MPI can add: it would take the bits of a bfloat16 for an integer.
_MPI_TYPES = {torch.float32: MPI.FLOAT, torch.float64: MPI.DOUBLE}


class MpiCollectives:
    """A rank's `Collectives` over a communicator, of CPU tensors.

    Sums raise `TypeError` where MPI cannot add numbers of a type. MPI adds only while a rank is in
    a call of it: sums beside computation end no sooner than after it.
    """

    sums_beside_work = False

    def __init__(self, comm: MPI.Intracomm, cluster: Cluster) -> None:
        """Splits `comm`, which has all ranks of the cluster; a collective call."""
        rank = comm.Get_rank()
        self.replica = cluster.replica_of(rank)
        self.stage = cluster.stage_of(rank)
        self.n_stages = cluster.n_stages
        self.n_replicas = cluster.n_replicas
        self.shard = cluster.shard_of(rank)
        self.n_shards = cluster.n_shards
        place = self.stage * cluster.n_shards + self.shard
        self._replicas = comm.Split(color=place, key=rank)
        self._shards = comm.Split(color=cluster.plan_of(rank), key=rank)
        self._same_replica = comm.Split(color=self.replica, key=rank)
        self._stages = MPI.Intracomm(self._same_replica.Split(color=self.shard, key=self.stage))
        self._holders: dict[tuple[int, ...], MPI.Intracomm] = {}

    def sum_over_replicas(self, values: torch.Tensor) -> None:
        """Replaces `values` by their sum over replicas."""
        self._replicas.Allreduce(MPI.IN_PLACE, _summable(values))

    def start_sum_over_replicas(self, values: torch.Tensor) -> Callable[[], None]:
        """Replaces `values` at once."""
        self.sum_over_replicas(values)
        return done

    def sum_share_over_replicas(self, values: torch.Tensor) -> None:
        """Replaces this replica's share of `values` by its sum over replicas, and no other."""
        share = values.view(self.n_replicas, -1)[self.replica]
        total = torch.empty_like(share)
        self._replicas.Reduce_scatter_block(_summable(values), _summable(total))
        share.copy_(total)

    def gather_shares(self, values: torch.Tensor) -> None:
        """Replaces every share of `values` by what its replica has there."""
        # Bytes, because MPI has no name for every dtype of torch's.
        self._replicas.Allgather(MPI.IN_PLACE, [values.view(torch.uint8).numpy(), MPI.BYTE])

    def sum_over_shards(self, values: torch.Tensor) -> torch.Tensor:
        """The sum of a tensor over shards; of 16-bit numbers in float32, then rounded."""
        wide = torch.promote_types(values.dtype, torch.float32)
        own = values.to(wide).contiguous()
        total = torch.empty_like(own)
        self._shards.Allreduce(_summable(own), _summable(total))
        return total.to(values.dtype)

    def sum_within_replica(self, values: torch.Tensor) -> None:
        """Replaces `values` by their sum over the ranks of this replica."""
        self._same_replica.Allreduce(MPI.IN_PLACE, _summable(values))

    def sum_over_copies(self, values: torch.Tensor, stages: Sequence[int]) -> None:
        """Adds up copies of weights on the first stage that holds them."""
        holders = self._holders_of(stages)
        own = _summable(values)
        if holders.Get_rank() == 0:
            holders.Reduce(MPI.IN_PLACE, own, root=0)
        else:
            holders.Reduce(own, None, root=0)

    def copy_from_first(self, values: torch.Tensor, stages: Sequence[int]) -> None:
        """Replaces `values` by those of the first of `stages`."""
        # Bytes, because MPI has no name for every dtype of torch's.
        buffer = [values.view(torch.uint8).numpy(), MPI.BYTE]
        self._holders_of(stages).Bcast(buffer, root=0)

    def _holders_of(self, stages: Sequence[int]) -> MPI.Intracomm:
        """The ranks of some stages of this replica and shard, which all call this together."""
        key = tuple(stages)
        if key not in self._holders:
            group = self._stages.Get_group().Incl(key)
            self._holders[key] = self._stages.Create_group(group)
            group.Free()
        return self._holders[key]


def _summable(values: torch.Tensor) -> list[Any]:
    """A buffer of numbers for MPI."""
    mpi_type = _MPI_TYPES.get(values.dtype)
    if mpi_type is None:
        known = ", ".join(str(dtype) for dtype in _MPI_TYPES)
        raise TypeError(f"MPI cannot add {values.dtype}; convert to one of {known}")
    return [values.numpy(), mpi_type]
