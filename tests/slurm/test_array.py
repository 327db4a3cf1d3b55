"""Jobs that run a program each: a grid search."""

import time
from pathlib import Path

import pytest
from tests.jobs.command_line import call
from tests.slurm.cluster import Cluster
from tests.slurm.jobs import SCRIPTS, submit

pytestmark = [pytest.mark.slurm, pytest.mark.timeout(300)]

STUDY = """\
extends = "config.toml"
[cluster]
n_replicas = 1
[[study.methods]]
name = "naive"
planner.batch = {rule = "naive_padding"}
[[study.methods]]
name = "ours"
"""


def test_the_best_points_of_a_grid_run_and_are_compared(
    cluster: Cluster, folder: Path, open_mpi: dict[str, str]
) -> None:
    (folder / "two.toml").write_text(STUDY)
    search = ["grid-search", "two.toml", "--batches", "1", "--best", "1", "--runs", "grid"]
    assert "grid/variants.txt: 2 runs" in call(folder, None, *search)
    sizes = ["--array=1-2", "--nodes=2", "--ntasks-per-node=1", "--cpus-per-task=2"]
    words = [*sizes, str(SCRIPTS / "grid_search.sbatch"), "grid/variants.txt", "runs"]
    changed = ["--set", "training.learning_rate=2e-3"]
    job = submit(cluster, folder, [*words, *changed], open_mpi | {"LAUNCHER": "srun --mpi=pmix"})
    while cluster.call("squeue", "--noheader"):
        time.sleep(0.2)
    configs = [(folder / "runs" / task / "config.toml").read_text() for task in ("1", "2")]
    assert 'rule = "naive_padding"' in configs[0]
    assert 'rule = "dynamic"' in configs[1]
    for task, config in zip(("1", "2"), configs, strict=True):
        assert "learning_rate = 0.002" in config
        rows = (folder / "runs" / task / "iterations.jsonl").read_text().splitlines()
        assert len(rows) == 3, job.text()
    compared = call(folder, None, "report", "runs/1", "runs/2")
    assert "planner.batch.rule: naive_padding in 1; dynamic in 2" in compared
