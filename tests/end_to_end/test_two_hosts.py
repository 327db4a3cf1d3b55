"""The main job over two hosts, emulated by namespaces of this machine, and TCP between them."""

import csv
import os
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]

BIN = Path(sys.prefix) / "bin"
ROOT = Path(__file__).parents[2]
HOSTS = ROOT / "tests" / "mpi" / "emulated_hosts.sh"
HOST = HOSTS.with_name("emulated_host.sh")
ENVIRONMENT = {
    **os.environ,
    "OMPI_ALLOW_RUN_AS_ROOT": "1",
    "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1",
    "OMP_NUM_THREADS": "1",
}

CONFIG = """
[data]
dataset = "corpus.h5"
max_tokens = 256
tokens_per_batch = 1024

[model]
n_layers = 4
hidden_size = 32
n_heads = 4
ffn_size = 64
vocab_size = 257
max_tokens = 256

[cluster]
n_replicas = 2
n_stages = 2
device_memory_bytes = 100_000_000

[planner.cost]
kind = "analytic"

[planner.batch]
rule = "dynamic"

[training]
iterations = 6
learning_rate = 1e-3
dtype = "float64"
"""


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
    """Runs a job of two ranks on each of two hosts."""
    return start(str(HOSTS), "2", "2", str(BIN / "mpiexec"), *command, cwd=cwd)


def losses(run_folder: Path) -> list[float]:
    with (run_folder / "iterations.csv").open() as file:
        return [float(row["loss"]) for row in csv.DictReader(file)]


def test_a_run_trains_over_tcp_as_on_one_host(tmp_path: Path) -> None:
    dynapipe = str(BIN / "dynapipe-hpc")
    for verb in (
        "demo-corpus corpus.jsonl --samples 200 --seed 3",
        "preprocess corpus.jsonl corpus.h5",
    ):
        subprocess.run([dynapipe, *verb.split()], cwd=tmp_path, check=True, capture_output=True)
    (tmp_path / "config.toml").write_text(CONFIG)
    far = on_two_hosts(dynapipe, "run", "config.toml", "-o", "far", cwd=tmp_path)
    assert far.returncode == 0, far.stderr
    helped = "plan store: one-sided access with a progress thread per planning rank"
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
