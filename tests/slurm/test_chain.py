"""From text to a report, in jobs that wait for each other."""

import os
import subprocess
import time
from pathlib import Path

import pytest
from tests.slurm.cluster import Cluster
from tests.slurm.jobs import SCRIPTS

pytestmark = [pytest.mark.slurm, pytest.mark.timeout(300)]

SIZE = "--nodes=4 --ntasks-per-node=1 --cpus-per-task=2 --time=10"


def submit_chain(
    cluster: Cluster, folder: Path, environment: dict[str, str], text: str
) -> "subprocess.CompletedProcess[str]":
    return subprocess.run(
        [SCRIPTS / "chain.sh", "chain.toml", "new.h5", "costs.h5", "run", text],
        cwd=folder,
        env={
            **os.environ,
            **environment,
            **cluster.environment,
            "LAUNCHER": "srun --mpi=pmix",
            "SIZE": SIZE,
            "TEXT_SIZE": "--ntasks=1 --time=10",
        },
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
    )


@pytest.fixture
def chain(folder: Path) -> Path:
    costs = '[planner.cost]\nkind = "profiled"\npath = "named by the chain"\n'
    (folder / "chain.toml").write_text(f'extends = "config.toml"\n{costs}')
    return folder


def until_nothing_is_queued(cluster: Cluster) -> None:
    while cluster.call("squeue", "--noheader"):
        time.sleep(0.2)


def test_text_becomes_a_report(cluster: Cluster, chain: Path, open_mpi: dict[str, str]) -> None:
    told = submit_chain(cluster, chain, open_mpi, "corpus.jsonl").stdout
    until_nothing_is_queued(cluster)
    logs = "\n".join(path.read_text() for path in sorted(chain.glob("dynapipe-*.out")))
    assert (chain / "costs.h5").exists(), logs
    rows = (chain / "run" / "iterations.csv").read_text().splitlines()
    assert len(rows) == 1 + 3, logs
    report = told.split()[-1]
    assert "real tokens per second" in (chain / f"dynapipe-report-{report}.out").read_text(), logs


def test_what_waits_for_a_failed_job_leaves_the_queue(
    cluster: Cluster, chain: Path, open_mpi: dict[str, str]
) -> None:
    submit_chain(cluster, chain, open_mpi, "missing.jsonl")
    until_nothing_is_queued(cluster)
    assert not (chain / "costs.h5").exists()
    assert not (chain / "run").exists()
