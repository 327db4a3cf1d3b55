"""Jobs that tests submit."""

import os
import re
import subprocess
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

from tests.slurm.cluster import Cluster

SCRIPTS = Path(__file__).parents[2] / "slurm"
ENDED = frozenset({"COMPLETED", "FAILED", "CANCELLED", "TIMEOUT", "NODE_FAIL"})
PATIENCE_S = 240
CRASHED_IN_MPI_INIT = ("(mca_pml_ob1_recv_frag_callback_match+", "(ompi_mpi_init+")


@dataclass(frozen=True, slots=True)
class BatchJob:
    """A job in the queue."""

    cluster: Cluster
    job_id: int
    log: Path

    @property
    def state(self) -> str:
        """As Slurm calls it: PENDING, RUNNING, ..."""
        return self.fact("JobState")

    @property
    def exit_code(self) -> int:
        """Of the script, once it has ended."""
        return int(self.fact("ExitCode").partition(":")[0])

    @property
    def n_restarts(self) -> int:
        """Number of times that it was put back in the queue."""
        return int(self.fact("Restarts"))

    def fact(self, name: str) -> str:
        """A fact about the job, from Slurm."""
        facts = self.cluster.call("scontrol", "show", "job", str(self.job_id))
        found = re.search(rf"\b{name}=(\S*)", facts)
        assert found is not None, facts
        return found[1]

    def text(self) -> str:
        """All that it has printed."""
        return self.log.read_text() if self.log.exists() else ""

    def iterations(self) -> list[int]:
        """The iterations it has told of, those after a restart included."""
        return [int(k) for k in re.findall(r"^iteration +(\d+)", self.text(), re.MULTILINE)]

    def wait_for(self, condition: Callable[["BatchJob"], bool]) -> None:
        """Waits until something is so; fails once it cannot be any more."""
        deadline = time.monotonic() + PATIENCE_S
        while not condition(self):
            state = self.state
            if time.monotonic() > deadline or (state in ENDED and not condition(self)):
                raise AssertionError(f"job {self.job_id} is {state}:\n{self.text()}")
            time.sleep(0.2)

    def end(self) -> str:
        """Waits for the end, and says the state it ended in."""
        self.wait_for(lambda job: job.state in ENDED)
        if all(name in self.text() for name in CRASHED_IN_MPI_INIT):
            self.cluster.call("scontrol", "requeue", str(self.job_id))
            self.wait_for(lambda job: job.n_restarts == 1 and job.state in ENDED)
        return self.state


def submit(
    cluster: Cluster, folder: Path, words: list[str], environment: Mapping[str, str]
) -> BatchJob:
    """Puts a job in the queue."""
    log = folder / "job.out"
    answer = subprocess.run(
        ["sbatch", "--parsable", "--time=10", f"--output={log}", *words],
        cwd=folder,
        env={**os.environ, **environment, **cluster.environment},
        check=True,
        capture_output=True,
        text=True,
        timeout=60,
    )
    return BatchJob(cluster, int(answer.stdout), log)
