"""Sums over ranks through MPI."""

import torch
from mpi4py import MPI

from dynapipe_hpc.plan.cluster import Cluster

# Only what MPI can add: it would take the bits of a bfloat16 for an integer.
_MPI_TYPES = {torch.float32: MPI.FLOAT, torch.float64: MPI.DOUBLE}


class MpiCollectives:
    """A rank's `Collectives` over a communicator, of CPU tensors."""

    def __init__(self, comm: MPI.Intracomm, cluster: Cluster) -> None:
        """Splits `comm`, which has a rank for every stage of every replica; a collective call."""
        rank = comm.Get_rank()
        self._same_stage = comm.Split(color=cluster.stage_of(rank), key=rank)
        self._same_replica = comm.Split(color=cluster.replica_of(rank), key=rank)

    def sum_over_replicas(self, values: torch.Tensor) -> None:
        """Replaces `values` by the sum over the ranks that hold the same stage.

        Raises:
            TypeError: MPI cannot add numbers of this dtype.
        """
        mpi_type = _MPI_TYPES.get(values.dtype)
        if mpi_type is None:
            known = ", ".join(str(dtype) for dtype in _MPI_TYPES)
            raise TypeError(f"MPI cannot add {values.dtype}; convert to one of {known}")
        self._same_stage.Allreduce(MPI.IN_PLACE, [values.numpy(), mpi_type])

    def sum_over_stages(self, value: float) -> float:
        """The sum over the ranks of this replica."""
        total: float = self._same_replica.allreduce(value)
        return total
