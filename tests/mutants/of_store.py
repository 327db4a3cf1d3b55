"""Mistakes in the plan store."""

from tests.mutants.mutant import Mutant

CONTRACT = ("tests/contract/test_plan_store.py",)
LAYOUT = ("tests/store/test_ring_layout.py",)
HOSTS = ("tests/store/test_hosts.py",)
POLLING = ("tests/store/test_polling.py",)
MPI_MEMORY = ("tests/store/test_mpi_memory.py",)
OUTBOX = ("tests/store/test_outbox.py",)
SHARED = ("tests/job/test_host_memory.py",)

STORE = (
    Mutant("store/ring_layout.py", "if id(message) not in starts:", "if True:",
           "shards of a stage each have a copy of their plan", LAYOUT),
    Mutant("store/ring_layout.py", "self._messages_start <= start <=", "0 <= start <=",
           "a message may begin within the headers", LAYOUT),
    Mutant("store/ring_layout.py", "number % self.n_entries", "0",
           "all iterations have one entry", CONTRACT),
    Mutant("store/ring_layout.py", "if len(self._messages) == self._layout.n_ranks:", "if True:",
           "a host gets an entry per rank", OUTBOX),
    Mutant("store/ring_layout.py", "number - self._n_taken[rank] < self", "0 < self",
           "an entry is overwritten before it is taken", OUTBOX),
    Mutant("store/ring_layout.py", "if not self._is_free(rank, number):", "if True:",
           "the counts of a host are read for each of its ranks", OUTBOX),
    Mutant("store/ring_layout.py", "sorted(self._messages.items())", "self._messages.items()",
           "plans are assigned to ranks in the order in which they were put", OUTBOX),
    Mutant("store/ring_layout.py", "enumerate(ranks)", "enumerate(self.leader_of)",
           "ranks are numbered across hosts", HOSTS),
    Mutant("store/mpi.py", "if waited_s > _WITHOUT_PAUSE_S:", "if False:",
           "a wait occupies a core", POLLING),
    Mutant("store/mpi.py", "min(share * waited_s, longest_pause_s)", "0",
           "a long wait asks as often as a short one", POLLING),
    Mutant("store/mpi.py", "min(share * waited_s, longest_pause_s)",
           "min(share * waited_s, 2e-3)", "nobody may pause for longer", POLLING),
    Mutant("store/mpi.py", "min(share * waited_s, longest_pause_s)", "share * waited_s",
           "pauses become as long as the wait allows", POLLING),
    Mutant("store/mpi.py", "self._window.Rput(block, owner, offset + start)",
           "self._window.Rput(block, owner, offset)", "blocks overwrite each other", MPI_MEMORY),
    Mutant("store/mpi.py", "self._window.Rget(block, owner, offset + start)",
           "self._window.Rget(block, owner, offset)", "all blocks are the first", MPI_MEMORY),
    Mutant("job/host_memory.py", "if window.model != MPI.WIN_UNIFIED:", "if False:",
           "a memory model with a second copy is accepted", SHARED),
)  # fmt: skip
