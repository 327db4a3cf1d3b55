"""From text to a report, in jobs that wait for each other."""

import os
import re
import subprocess
from datetime import datetime
from itertools import pairwise
from pathlib import Path

import pytest
from tests.slurm.cluster import Cluster
from tests.slurm.jobs import ENDED, SCRIPTS, BatchJob

from dynapipe_hpc.planner.cost.table.profile_file import read_table

pytestmark = [pytest.mark.slurm, pytest.mark.timeout(300)]

STEPS = ("preprocess", "profile", "run", "report")
SIZE = "--nodes=4 --ntasks-per-node=1 --cpus-per-task=2 --time=10"


def submit_chain(
    cluster: Cluster, folder: Path, environment: dict[str, str], text: str
) -> dict[str, BatchJob]:
    """The jobs of a chain that has ended, by step, as the chain's numbers tell them."""
    told = subprocess.run(
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
    ).stdout
    numbers = {step: int(number) for step, number in re.findall(r"(\w+) (\d+)", told)}
    assert tuple(numbers) == STEPS
    jobs = {
        step: BatchJob(cluster, number, folder / f"dynapipe-{step}-{number}.out")
        for step, number in numbers.items()
    }
    for job in jobs.values():
        job.wait_for(lambda job: job.state in ENDED)
    return jobs


def time_of(job: BatchJob, event: str) -> datetime:
    """Time at which a job began ("Start") or ended ("End"), in whole seconds."""
    return datetime.fromisoformat(job.fact(f"{event}Time"))


@pytest.fixture
def chain(folder: Path) -> Path:
    costs = '[planner.cost]\nkind = "profiled"\npath = "named by the chain"\n'
    (folder / "chain.toml").write_text(f'extends = "config.toml"\n{costs}')
    return folder


def test_text_becomes_a_report_one_step_after_the_other(
    cluster: Cluster, chain: Path, open_mpi: dict[str, str]
) -> None:
    jobs = submit_chain(cluster, chain, open_mpi, "corpus.jsonl")
    logs = "\n".join(job.text() for job in jobs.values())
    assert {step: job.state for step, job in jobs.items()} == dict.fromkeys(STEPS, "COMPLETED"), (
        logs
    )
    for before, after in pairwise(jobs.values()):
        assert time_of(before, "End") <= time_of(after, "Start")
    assert (chain / "new.h5").exists()
    assert read_table(chain / "costs.h5").provenance["ranks"] == "4"
    rows = (chain / "run" / "iterations.jsonl").read_text().splitlines()
    assert len(rows) == 3, logs
    assert "real tokens per second" in jobs["report"].text(), logs


@pytest.mark.parametrize(
    ("failing", "text", "replaced", "says"),
    [
        ("preprocess", "missing.jsonl", "", "missing.jsonl"),
        ("profile", "corpus.jsonl", "[model]\nn_heads = 5", "n_heads"),
    ],
)
def test_a_failed_step_says_why_and_none_of_those_after_it_runs(
    cluster: Cluster,
    chain: Path,
    open_mpi: dict[str, str],
    failing: str,
    text: str,
    replaced: str,
    says: str,
) -> None:
    with (chain / "chain.toml").open("a") as file:
        file.write(f"\n{replaced}\n")
    jobs = submit_chain(cluster, chain, open_mpi, text)
    n_before = STEPS.index(failing)
    states = [job.state for job in jobs.values()]
    expected = ["COMPLETED"] * n_before + ["FAILED"] + ["CANCELLED"] * (3 - n_before)
    assert states == expected, [job.text() for job in jobs.values()]
    assert says in jobs[failing].text()
    assert (chain / "new.h5").exists() == (n_before > 0)
    for job in list(jobs.values())[n_before + 1 :]:
        assert not job.log.exists()
    assert not (chain / "costs.h5").exists()
    assert not (chain / "run").exists()
