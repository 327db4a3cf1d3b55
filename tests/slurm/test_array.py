"""Jobs that run a program each: a grid search."""

import time
from pathlib import Path

import pytest
from tests.slurm.cluster import Cluster
from tests.slurm.jobs import SCRIPTS, submit

pytestmark = [pytest.mark.slurm, pytest.mark.timeout(300)]

VARIANTS = """\
two.toml --set training.learning_rate=2e-3
two.toml --set planner.batch={rule='naive_padding',rows_per_microbatch=1}
"""


def test_every_task_runs_its_line(cluster: Cluster, folder: Path, open_mpi: dict[str, str]) -> None:
    (folder / "two.toml").write_text('extends = "config.toml"\n[cluster]\nn_replicas = 1\n')
    (folder / "variants.txt").write_text(VARIANTS)
    sizes = ["--array=1-2", "--nodes=2", "--ntasks-per-node=1", "--cpus-per-task=2"]
    words = [*sizes, str(SCRIPTS / "grid_search.sbatch"), "variants.txt", "runs"]
    job = submit(cluster, folder, words, open_mpi | {"LAUNCHER": "srun --mpi=pmix"})
    while cluster.call("squeue", "--noheader"):
        time.sleep(0.2)
    configs = [(folder / "runs" / task / "config.toml").read_text() for task in ("1", "2")]
    assert "learning_rate = 0.002" in configs[0]
    assert 'rule = "naive_padding"' in configs[1]
    for task in ("1", "2"):
        rows = (folder / "runs" / task / "iterations.csv").read_text().splitlines()
        assert len(rows) == 1 + 3, job.text()
