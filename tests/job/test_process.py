"""A process: its freed memory, its cores, and what it says."""

import marshal
import subprocess
import sys
from importlib.util import find_spec

import pytest
from mpi4py import MPI

from dynapipe_hpc.data.errors import print_error, warn
from dynapipe_hpc.job.job import Job
from dynapipe_hpc.job.machine import crowded_hosts
from dynapipe_hpc.job.world import STARTED

MODULE = "dynapipe_hpc.job.process"
IN_A_NEW_PROCESS = """
import marshal, resource, sys
exec(marshal.loads(sys.stdin.buffer.read()))
assert keep_freed_memory()
n_bytes, n_times = 80 << 20, 10  # more than the threshold for what is always mapped anew
before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
for _ in range(n_times):
    large, small = b"x" * n_bytes, b"x" * (n_bytes // 8)
    del large, small
n_faults = resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before
print(n_faults * resource.getpagesize() / (n_times * n_bytes))
"""


def test_pages_are_cleared_once() -> None:
    # The heap of a process that has run other tests may have no room to grow.
    spec = find_spec(MODULE)
    assert spec is not None
    loader = spec.loader
    code = marshal.dumps(loader.get_code(MODULE))  # type: ignore[union-attr]
    command = [sys.executable, "-c", IN_A_NEW_PROCESS]
    found = subprocess.run(command, input=code, capture_output=True, check=True)
    assert float(found.stdout) < 0.2


def test_missing_cores_are_asked_for() -> None:
    n = STARTED.n_cores
    job = Job(MPI.COMM_SELF)
    assert not crowded_hosts(job, n - 1)
    (line,) = crowded_hosts(job, n)
    assert f"{n} cores for 1 x {n + 1} threads (ranks x training.threads and a planner)" in line
    assert f"--cpus-per-task={n + 1}" in line


def test_a_message_says_who_speaks_and_steers_no_terminal(
    capsys: pytest.CaptureFixture[str],
) -> None:
    print_error("\x1b[2J: cannot be read")
    assert capsys.readouterr().err == "dynapipe-hpc: \\x1b[2J: cannot be read\n"


def test_a_warning_is_called_one(capsys: pytest.CaptureFixture[str]) -> None:
    warn("few cores")
    assert capsys.readouterr().err == "dynapipe-hpc: warning: few cores\n"
