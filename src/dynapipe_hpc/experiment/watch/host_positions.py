"""Positions of the ranks on this host, in shared memory."""

import os
from dataclasses import dataclass
from pathlib import Path

from dynapipe_hpc.experiment.watch.position import HEAD_BYTES, Position
from dynapipe_hpc.job.host_memory import HostMemory
from dynapipe_hpc.job.job import Job
from dynapipe_hpc.job.world import MPI

_WORD_BYTES = 8


@dataclass(frozen=True, slots=True)
class Neighbour:
    """A rank on this host.

    Attributes:
        rank: Number of the rank in the job.
        pid: Process id of the rank.
        names: PID namespace in which the process id is valid.
    """

    rank: int
    pid: int
    names: str


class HostPositions:
    """Positions that every rank of the host can read without the others' help.

    Attributes:
        host: Name of the host.
        neighbours: The ranks of the host, this one included.
        own: Position of this rank, which it writes.
    """

    def __init__(self, job: Job, plan_bytes: int) -> None:
        """Shares positions of plans of at most `plan_bytes`; all ranks of `job` together.

        Raises:
            RunError: Memory that ranks share is not as this needs it; on all ranks.
        """
        self.host = MPI.Get_processor_name()
        local = job.on_this_host()
        n_bytes = HEAD_BYTES + -(-plan_bytes // _WORD_BYTES) * _WORD_BYTES
        self._memory = HostMemory(local.comm, n_bytes)
        self._memory.write(local.rank, 0, bytes(HEAD_BYTES))
        names = str(Path("/proc/self/ns/pid").readlink())
        self.neighbours = local.comm.allgather(Neighbour(job.rank, os.getpid(), names))
        ranks = [neighbour.rank for neighbour in self.neighbours]
        positions = (Position(self._memory.part(place)) for place in range(local.size))
        self._positions: dict[int, Position] = dict(zip(ranks, positions, strict=True))
        self.own = self._positions[job.rank]

    def __getitem__(self, rank: int) -> Position:
        """The position of a rank of this host."""
        return self._positions[rank]

    def close(self) -> None:
        """Releases the memory; all ranks together."""
        self._positions.clear()
        self._memory.close()
