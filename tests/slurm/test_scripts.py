"""Slurm's own check of the scripts; it reads them, and runs nothing."""

import os
import subprocess
from pathlib import Path

import pytest
from tests.slurm.cluster import SCRIPTS, Cluster

pytestmark = pytest.mark.slurm

SIZES = ["--nodes=4", "--ntasks-per-node=2", "--cpus-per-task=1", "--time=01:00:00"]


def validate(cluster: Cluster, *words: str) -> "subprocess.CompletedProcess[str]":
    return subprocess.run(
        ["sbatch", "--test-only", *words],
        env={**os.environ, **cluster.environment},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )


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


@pytest.mark.parametrize(("given", "passed"), [({"SLURM_CPUS_PER_TASK": "8"}, "8"), ({}, "")])
def test_a_grid_search_passes_on_all_that_it_is_given(
    tmp_path: Path, given: dict[str, str], passed: str
) -> None:
    """Cores per task too, but none of its own: they may have been given per GPU."""
    (tmp_path / "v.txt").write_text("a.toml\nb.toml --set training.seed=1\n")
    (tmp_path / "launch").write_text('#!/bin/sh\necho "$SRUN_CPUS_PER_TASK:" "$@"\n')
    (tmp_path / "launch").chmod(0o755)
    answer = subprocess.run(
        [SCRIPTS / "grid_search.sbatch", "v.txt", "runs/x", "--set", "data.dataset=my data.h5"],
        cwd=tmp_path,
        env={"PATH": os.environ["PATH"], "LAUNCHER": "./launch", "SLURM_ARRAY_TASK_ID": "2"}
        | given,
        capture_output=True,
        text=True,
        check=True,
    )
    told = f"{passed}: dynapipe-hpc run b.toml --set training.seed=1 -o runs/x/2 --set data."
    assert answer.stdout == f"{told}dataset=my data.h5\n"


@pytest.mark.parametrize("script", sorted(SCRIPTS.glob("*.sbatch")), ids=lambda path: path.stem)
def test_scripts_are_valid_and_short(script: str) -> None:
    lines = (SCRIPTS / script).read_text().splitlines()
    subprocess.run(["bash", "-n", script], check=True)
    assert len(lines) <= 25
    assert sum(line.startswith("exec ") for line in lines) == 1
