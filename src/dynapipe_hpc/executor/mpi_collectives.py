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
        """Splits `comm`, which has a rank for every stage of every replica; a collective call."""
        rank = comm.Get_rank()
        self.replica = cluster.replica_of(rank)
        self.n_replicas = cluster.n_replicas
        self._same_stage = comm.Split(color=cluster.stage_of(rank), key=rank)
        self._same_replica = comm.Split(color=cluster.replica_of(rank), key=rank)

    def sum_over_replicas(self, values: torch.Tensor) -> None:
        """Replaces `values` by their sum over replicas."""
        self._same_stage.Allreduce(MPI.IN_PLACE, _summable(values))

    def sum_shard_over_replicas(self, values: torch.Tensor) -> None:
        """Replaces this replica's shard of `values` by its sum over replicas, and no other."""
        shard = values.view(self.n_replicas, -1)[self.replica]
        total = torch.empty_like(shard)
        self._same_stage.Reduce_scatter_block(_summable(values), _summable(total))
        shard.copy_(total)

    def gather_shards(self, values: torch.Tensor) -> None:
        """Replaces every shard of `values` by what its replica has there."""
        # Bytes, because MPI has no name for every dtype of torch's.
        self._same_stage.Allgather(MPI.IN_PLACE, [values.view(torch.uint8).numpy(), MPI.BYTE])

    def sum_over_stages(self, value: float) -> float:
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
