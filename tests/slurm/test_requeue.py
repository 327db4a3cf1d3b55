"""Jobs that end before their end and are started again by Slurm, the one command among them."""

import re
import subprocess
import sys
from pathlib import Path

import pytest
from tests.slurm.cluster import SCRIPTS, BatchJob, Cluster, submit

pytestmark = [pytest.mark.slurm, pytest.mark.timeout(600)]

SIZES = ["--nodes=2", "--ntasks-per-node=1", "--cpus-per-task=2"]
TWO_RANKS = ["--set", "cluster.n_replicas=1"]
LONG = ["--set", "training.iterations=100000", "--set", "checkpoint.every=2", *TWO_RANKS]


@pytest.fixture
def job(cluster: Cluster, folder: Path, open_mpi: dict[str, str]) -> BatchJob:
    """A long training that has begun."""
    return train(cluster, folder, open_mpi)


def train(cluster: Cluster, folder: Path, environment: dict[str, str], *options: str) -> BatchJob:
    """Submits a long training and waits until it has begun."""
    words = [*SIZES, *options, str(SCRIPTS / "run.sbatch"), "config.toml", "-o", "run", *LONG]
    job = submit(cluster, folder, words, environment | {"LAUNCHER": "srun --mpi=pmix"})
    job.wait_for(lambda job: len(job.iterations()) > 3)
    return job


def goes_on(job: BatchJob) -> list[int]:
    """Waits until a job that ended has trained on; the iterations it told of, in order."""
    job.wait_for(lambda job: job.n_restarts == 1)
    job.wait_for(lambda job: len(after_restart(job)) > 3)
    return job.iterations()


def after_restart(job: BatchJob) -> list[int]:
    """Iteration after which the second start continued, if it has begun, and those since then."""
    _, *rest = re.split(r"continues after (\d+) iterations", job.text())
    return (
        [int(rest[0]), *(int(k) for k in re.findall(r"iteration +(\d+):", rest[1]))] if rest else []
    )


def test_a_job_asked_by_its_time_limit_puts_itself_back_and_loses_nothing(
    cluster: Cluster, job: BatchJob
) -> None:
    cluster.call("scancel", "--signal=USR1", str(job.job_id))
    told = goes_on(job)
    assert told == list(range(len(told)))


def test_a_job_put_back_by_its_user_goes_on(cluster: Cluster, job: BatchJob) -> None:
    cluster.call("scontrol", "requeue", str(job.job_id))
    told = goes_on(job)
    assert told == list(range(len(told)))


def test_a_preempted_job_goes_on_after_the_urgent_one(
    cluster: Cluster, job: BatchJob, folder: Path
) -> None:
    urgent = ["--partition=urgent", "--nodes=4", "--exclusive", "--wrap=sleep 1"]
    log = folder / "urgent"
    log.mkdir()
    assert submit(cluster, log, urgent, {}).end() == "COMPLETED"
    told = goes_on(job)
    assert told == list(range(len(told)))


def test_a_job_whose_node_fails_goes_on_without_it(cluster: Cluster, job: BatchJob) -> None:
    failed = "n1"
    assert failed in cluster.call("scontrol", "show", "hostnames", job.fact("NodeList"))
    cluster.fail_node(failed)
    goes_on(job)
    start, *since = after_restart(job)
    assert start % 2 == 0  # its last checkpoint
    assert since == list(range(start, start + len(since)))
    assert failed not in cluster.call("scontrol", "show", "hostnames", job.fact("NodeList"))
    cluster.start_node(failed)


def test_slurm_asks_before_the_time_limit(
    cluster: Cluster, folder: Path, open_mpi: dict[str, str]
) -> None:
    job = train(cluster, folder, open_mpi, "--time=2", "--signal=USR1@50")
    told = goes_on(job)
    assert told == list(range(len(told)))


def test_a_job_put_back_ends_with_the_model(
    cluster: Cluster, folder: Path, open_mpi: dict[str, str]
) -> None:
    command = [str(Path(sys.executable).with_name("dynapipe-hpc")), "demo-corpus", "chats.jsonl"]
    made = [*command, "--samples", "300", "--chat", "--model", "model"]
    subprocess.run(made, cwd=folder, check=True, timeout=60)
    words = ["model", "chats.jsonl", "-o", "tuned", "--memory", "1GB", "--set", "training.epochs=4"]
    script = str(SCRIPTS / "finetune.sbatch")
    launcher = open_mpi | {"LAUNCHER": "srun --mpi=pmix"}
    job = submit(cluster, folder, [*SIZES, script, *words], launcher)
    job.wait_for(lambda job: len(job.iterations()) > 3)
    cluster.call("scontrol", "requeue", str(job.job_id))
    assert job.end() == "COMPLETED", job.text()
    assert job.n_restarts == 1
    assert "loss on samples that were held out" in job.text()
    assert (folder / "tuned" / "model" / "model.safetensors").exists()
