"""Sums over ranks through MPI."""

from typing import Any

import torch
from mpi4py import MPI

from dynapipe_hpc.plan.cluster import Cluster

# Only what MPI can add: it would take the bits of a bfloat16 for an integer.
_MPI_TYPES = {torch.float32: MPI.FLOAT, torch.float64: MPI.DOUBLE}


class MpiCollectives:
    """A rank's `Collectives` over a communicator, of CPU tensors.

    Sums raise `TypeError` where MPI cannot add numbers of a type.
    """

    def __init__(self, comm: MPI.Intracomm, cluster: Cluster) -> None:
        """Splits `comm`, which has all ranks of the cluster; a collective call."""
        rank = comm.Get_rank()
        self.replica = cluster.replica_of(rank)
        self.n_replicas = cluster.n_replicas
        self.shard = cluster.shard_of(rank)
        self.n_shards = cluster.n_shards
        place = cluster.stage_of(rank) * cluster.n_shards + self.shard
        self._replicas = comm.Split(color=place, key=rank)
        self._shards = comm.Split(color=cluster.plan_of(rank), key=rank)
        self._same_replica = comm.Split(color=self.replica, key=rank)

    def sum_over_replicas(self, values: torch.Tensor) -> None:
        """Replaces `values` by their sum over replicas."""
        self._replicas.Allreduce(MPI.IN_PLACE, _summable(values))

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

    def sum_within_replica(self, value: float) -> float:
        """The sum over the ranks of this replica."""
        total: float = self._same_replica.allreduce(value)
        return total


def _summable(values: torch.Tensor) -> list[Any]:
    """A buffer of numbers for MPI."""
    mpi_type = _MPI_TYPES.get(values.dtype)
    if mpi_type is None:
        known = ", ".join(str(dtype) for dtype in _MPI_TYPES)
        raise TypeError(f"MPI cannot add {values.dtype}; convert to one of {known}")
    return [values.numpy(), mpi_type]
