"""Rings of the hosts of a job, as planners on other hosts reach them."""

from mpi4py import MPI

from dynapipe_hpc.job.host_memory import HostMemory
from dynapipe_hpc.store.config import ProgressChoice
from dynapipe_hpc.store.hosts import Hosts
from dynapipe_hpc.store.measure_progress import choose_progress
from dynapipe_hpc.store.mpi_memory import MpiMemory
from dynapipe_hpc.store.progress import AccessProgress, ProgressThread
from dynapipe_hpc.store.ring_layout import WORD


class FarRings:
    """Memory of the leaders of all hosts, for planners; nothing is opened if there is one host.

    Only leaders and planners take part, so the cost of opening it does not grow with the ranks of
    a host.

    Attributes:
        progress: Mechanism that answers accesses, and the reason for it; the same on all ranks.
    """

    def __init__(
        self,
        comm: MPI.Intracomm,
        hosts: Hosts,
        planners: list[int],
        near: HostMemory,
        *,
        choice: ProgressChoice,
    ) -> None:
        """Opens the rings; called by all ranks of `comm` together.

        Args:
            comm: The ranks of the job.
            hosts: Hosts of the ranks.
            planners: The ranks that plan.
            near: Memory of this rank's host; its leader's part is the ring.
            choice: Choice of the mechanism; see `StoreConfig`.
        """
        self._hosts, self._rank, self._planners = hosts, comm.Get_rank(), planners
        self._members = sorted({*hosts.ranks_of, *planners})
        self._memory: MpiMemory | None = None
        self._thread: ProgressThread | None = None
        if len(hosts.ranks_of) == 1:
            self.progress = AccessProgress("rma", "one host, whose ranks share memory")
            return
        is_leader = hosts.leader_of[self._rank] == self._rank
        is_member = self._rank in self._members
        # All ranks split, though only members open the window: a split is collective over the job.
        among = MPI.Intracomm(comm.Split(0 if is_member else MPI.UNDEFINED, self._rank))
        progress = None
        if is_member:
            self._memory = MpiMemory(among, near.part(0) if is_leader else None)
            progress = self._choose(among, choice)
        # The leader, rank 0 on its host, is a member and tells the choice to those that are not.
        self.progress = near.comm.bcast(progress)
        if is_leader and self._memory and self.progress.mechanism == "thread":
            self._thread = ProgressThread(self._memory.enter_mpi)

    def find(self, leader: int) -> tuple[MpiMemory, int]:
        """The memory with the ring of a leader's host, and its owner's rank in it, for planners."""
        if self._memory is None:
            raise ValueError(f"rank {self._rank} does not plan for another host")
        return self._memory, self._members.index(leader)

    def answer(self) -> None:
        """Lets a leader that waits answer planners; loads of its ring alone do not."""
        if self._memory is not None and self._thread is None:
            self._memory.enter_mpi()

    def close(self) -> None:
        """Releases the memory; called by all ranks together when no thread uses it."""
        if self._thread is not None:
            self._thread.stop()  # it calls MPI on the window, which is freed next
        if self._memory is not None:
            self._memory.close()

    def _choose(self, among: MPI.Intracomm, choice: ProgressChoice) -> AccessProgress:
        if choice != "auto":
            return AccessProgress(choice, f"store.progress = '{choice}'")
        owners = [self._members.index(leader) for leader in self._hosts.ranks_of]
        return choose_progress(among, owners, self._try_access)

    def _try_access(self, owner: int) -> None:
        """Accesses a leader's memory as a put does, if this rank will ever do so."""
        leader_here = self._hosts.leader_of[self._rank]
        if self._memory and self._rank in self._planners and self._members[owner] != leader_here:
            self._memory.read(owner, 0, WORD.size)
            self._memory.write(owner, 0, WORD.pack(0))
