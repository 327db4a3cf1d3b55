"""Slurm's own check of the scripts; it reads them, and runs nothing."""

import subprocess

import pytest
from tests.jobs.command_line import run_command
from tests.slurm.cluster import SCRIPTS, Cluster

pytestmark = pytest.mark.slurm

SIZES = ["--nodes=4", "--ntasks-per-node=2", "--cpus-per-task=1", "--time=01:00:00"]


def validate(cluster: Cluster, *words: str) -> "subprocess.CompletedProcess[str]":
    return run_command("sbatch", "--test-only", *words, variables=cluster.environment)


@pytest.mark.parametrize(
    ("script", "options"),
    [
        ("finetune", ["--gpus-per-node=2"]),
        ("preprocess", []),
        ("profile", ["--gpus-per-node=2"]),
        ("run", ["--gpus-per-node=2"]),
        ("grid_search", ["--gpus-per-node=2", "--array=1-3"]),
    ],
)
def test_slurm_accepts_every_script(cluster: Cluster, script: str, options: list[str]) -> None:
    answer = validate(cluster, *SIZES, *options, str(SCRIPTS / f"{script}.sbatch"), "a", "b")
    assert answer.returncode == 0, answer.stderr
    assert "to start at" in answer.stderr


@pytest.mark.parametrize("impossible", ["--gpus-per-node=3", "--nodes=5", "--cpus-per-task=3"])
def test_slurm_refuses_what_the_nodes_do_not_have(cluster: Cluster, impossible: str) -> None:
    answer = validate(cluster, *SIZES, impossible, str(SCRIPTS / "run.sbatch"), "a")
    assert answer.returncode != 0
