"""A job as a user starts it, with real ranks, that a test may do anything to."""

import os
import re
import signal
import subprocess
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from uuid import uuid4

from tests.jobs.command_line import BIN, ROOT
from tests.jobs.mpi_implementations import LIBRARY, OPEN_MPI

from dynapipe_hpc.job.process import state_of

RUN = (str(BIN / "dynapipe-hpc"), "run", "config.toml")
_SETTINGS = {"OMP_NUM_THREADS": "1"}
_MARK = "DYNAPIPE_HPC_TEST_JOB"
_PAUSE_S = 0.05


@dataclass(frozen=True, slots=True)
class Ended:
    exit_code: int
    out: str
    err: str

    @property
    def messages(self) -> list[str]:
        """Messages of the command there, without warnings: few cores would add some."""
        # The launcher puts characters of its own before some lines.
        found = (re.search("dynapipe-hpc: (?!warning: ).*", line) for line in self.err.splitlines())
        return [message[0] for message in found if message]


class RealJob:
    """Ranks under mpiexec, in the folder that holds their files."""

    def __init__(
        self,
        folder: Path,
        n_ranks: int,
        *command: str,
        env: Mapping[str, str] | None = None,
        mpi: Path = OPEN_MPI,
    ) -> None:
        self._mark = uuid4().hex
        self._folder = folder
        self._outputs = [folder / f"{self._mark}.out", folder / f"{self._mark}.err"]
        out, err = (path.open("w") for path in self._outputs)
        self.process = subprocess.Popen(
            [str(mpi / "mpiexec"), "-n", str(n_ranks), *command],
            cwd=folder,
            env={
                **os.environ,
                **ROOT,
                **_SETTINGS,
                **LIBRARY[mpi],
                **(env or {}),
                _MARK: self._mark,
            },
            stdout=out,
            stderr=err,
        )
        out.close()
        err.close()

    def out(self) -> str:
        """Text that it has printed so far."""
        return self._outputs[0].read_text()

    def wait_for_line(self, text: str, timeout_s: float = 280.0) -> None:
        """Returns when it has printed a text."""
        end_s = time.monotonic() + timeout_s
        while text not in self.out():
            assert self.process.poll() is None, self._outputs[1].read_text()
            assert time.monotonic() < end_s, f"no {text!r} in {self.out()!r}"
            time.sleep(_PAUSE_S)

    def pid_of(self, rank: int) -> int:
        (pid,) = (pid for pid, env in self._marked() if _is_rank(rank, env))
        return pid

    def send(self, rank: int, number: signal.Signals) -> None:
        os.kill(self.pid_of(rank), number)

    def kill_rank(self, rank: int) -> bool:
        """Kills a rank as soon as it is there; returns false if the job has ended before."""
        while self.process.poll() is None:
            for pid in [pid for pid, env in self._marked() if _is_rank(rank, env)]:
                os.kill(pid, signal.SIGKILL)
                return True
            time.sleep(_PAUSE_S)
        return False

    def wait(self, timeout_s: float) -> Ended:
        """Waits until all its processes have ended, no longer than this."""
        end_s = time.monotonic() + timeout_s
        while self.process.poll() is None or any(True for _ in self._marked()):
            assert time.monotonic() < end_s, self._left_behind()
            time.sleep(_PAUSE_S)
        out, err = (path.read_text() for path in self._outputs)
        return Ended(self.process.returncode, out, err)

    def kill(self) -> None:
        for pid, _ in self._marked():
            os.kill(pid, signal.SIGKILL)
        self.process.wait()

    def _left_behind(self) -> str:
        """The processes that there still are, their states, and what the job has said."""
        states = [f"{pid}: {state_of(pid)}" for pid, _ in self._marked()]
        return f"left behind: {states}\n" + "\n".join(p.read_text() for p in self._outputs)

    def _marked(self) -> Iterator[tuple[int, list[bytes]]]:
        """The processes of this job and their environments; zombies have none."""
        mark = f"{_MARK}={self._mark}".encode()
        for folder in Path("/proc").glob("[0-9]*"):
            try:
                env = (folder / "environ").read_bytes().split(b"\0")
            except OSError:
                continue
            if mark in env:
                yield int(folder.name), env


def _is_rank(rank: int, env: list[bytes]) -> bool:
    """Whether Open MPI's launcher, or MPICH's, gave a process this rank."""
    return not {f"PMIX_RANK={rank}".encode(), f"PMI_RANK={rank}".encode()}.isdisjoint(env)


@contextmanager
def real_job(
    folder: Path,
    n_ranks: int,
    *command: str,
    env: Mapping[str, str] | None = None,
    mpi: Path = OPEN_MPI,
) -> Iterator[RealJob]:
    """Starts a job with the launcher and library of `mpi`; nothing of it survives the block."""
    job = RealJob(folder, n_ranks, *command, env=env, mpi=mpi)
    try:
        yield job
    finally:
        job.kill()
