"""Jobs over several hosts, emulated by namespaces of this machine, and TCP between them."""

import os
import re
import subprocess
import sys
import time
from pathlib import Path

import pytest
from tests.jobs import command_line
from tests.jobs.command_line import BIN, write_job_files
from tests.jobs.light_job import LIMIT_S

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]

ROOT = Path(__file__).parents[3]
HOSTS = ROOT / "tests" / "mpi" / "emulated_hosts.sh"
HOST = HOSTS.with_name("emulated_host.sh")
ENVIRONMENT = {**os.environ, **command_line.ROOT, "OMP_NUM_THREADS": "1"}


@pytest.fixture(scope="module", autouse=True)
def hosts_can_be_emulated() -> None:
    if not (BIN / "prterun").exists():
        pytest.skip("emulated hosts need Open MPI")
    namespace = [str(HOST), "host0", "true"]
    tried = subprocess.run(namespace, capture_output=True, text=True, check=False)
    if tried.returncode:
        pytest.skip(f"namespaces are not allowed here: {tried.stderr.strip()}")


def start(*command: str, cwd: Path) -> "subprocess.CompletedProcess[str]":
    return subprocess.run(
        command, cwd=cwd, env=ENVIRONMENT, capture_output=True, text=True, timeout=240, check=False
    )


def on_two_hosts(*command: str, cwd: Path) -> "subprocess.CompletedProcess[str]":
    return start(str(HOSTS), "2", "2", str(BIN / "mpiexec"), *command, cwd=cwd)


def losses(run_folder: Path) -> list[float]:
    return command_line.columns(run_folder, "loss")[0]


def test_a_run_trains_over_tcp_as_on_one_host(tmp_path: Path) -> None:
    dynapipe = str(BIN / "dynapipe-hpc")
    write_job_files(tmp_path, {"training": {"iterations": 6, "dtype": "float64"}})
    far = on_two_hosts(dynapipe, "run", "config.toml", "-o", "far", cwd=tmp_path)
    assert far.returncode == 0, far.stderr
    helped = "plan store: one-sided access with a progress thread per host"
    assert f"{helped} (rank 0 did not answer while it computed)" in far.stdout
    on_one_host = [str(BIN / "mpiexec"), "-n", "4"]
    near = start(*on_one_host, dynapipe, "run", "config.toml", "-o", "near", cwd=tmp_path)
    assert near.returncode == 0, near.stderr
    assert "plan store: one-sided access" in near.stdout
    assert losses(tmp_path / "far") == pytest.approx(losses(tmp_path / "near"), rel=1e-9)


def test_plans_are_taken_over_tcp_while_their_planner_computes() -> None:
    pytest_of_ranks = [sys.executable, "-m", "mpi4py", "-m", "pytest", "-m", "mpi", "-q"]
    tests = ["-p", "no:cacheprovider", "tests/mpi/test_plan_store.py", "-k", "taken_while"]
    job = on_two_hosts(*pytest_of_ranks, *tests, cwd=ROOT)
    assert job.returncode == 0, job.stdout + job.stderr
    assert job.stdout.count("4 passed") == 4


@pytest.mark.parametrize("missing", [0, 5])
def test_a_hang_is_told_once_with_the_place_of_every_rank(missing: int, tmp_path: Path) -> None:
    """Rank 0 decides who may speak, unless it is the one that hangs."""
    ranks = [sys.executable, "-m", "tests.jobs.light_job", str(missing), str(tmp_path)]
    command = [str(HOSTS), "4", "2", str(BIN / "mpiexec"), *ranks]
    pipe = subprocess.PIPE
    with subprocess.Popen(
        command, cwd=ROOT, env=ENVIRONMENT, stdout=pipe, stderr=pipe, text=True
    ) as job:
        assert job.stdout is not None
        assert job.stderr is not None
        lines = [(time.time(), line) for line in job.stderr]
        hung_s = float(job.stdout.read().split()[-1])
    assert job.returncode not in (0, 2)
    told = "no progress here for 2 s"
    ((told_s, message),) = [(at_s, line) for at_s, line in lines if told in line]
    assert f"rank {missing} on host{missing // 2} (process stopped) has been at" in message
    assert " for 2 s" in message
    assert told_s - hung_s < LIMIT_S + 3.0 + 2.0  # the last 2 s for a busy machine
    text = "".join(line for _, line in lines)
    rows = text.partition("\nrank  ")[2].splitlines()[1:9]
    assert rows[0].split()[0] == str(missing)
    assert {int(row.split()[0]) for row in rows} == {*range(8)}
    assert not re.search("no answer from|further ranks", text)
