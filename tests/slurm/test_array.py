"""Jobs that run a program each: a grid search."""

from pathlib import Path

import pytest
from tests.slurm.cluster import Cluster
from tests.slurm.jobs import SCRIPTS, submit

pytestmark = [pytest.mark.slurm, pytest.mark.timeout(300)]

VARIANTS = """\
config.toml --set training.learning_rate=2e-3
config.toml --set planner.batch={rule='naive_padding',rows_per_microbatch=1}
"""


def test_every_task_runs_its_line(cluster: Cluster, folder: Path, open_mpi: dict[str, str]) -> None:
    (folder / "variants.txt").write_text(VARIANTS)
    sizes = ["--array=1-2", "--nodes=2", "--ntasks-per-node=2"]
    words = [*sizes, str(SCRIPTS / "grid_search.sbatch"), "variants.txt", "runs"]
    job = submit(cluster, folder, words, open_mpi | {"LAUNCHER": "srun --mpi=pmix"})
    job.wait_for(lambda _: not cluster.call("squeue", "-h"))
    configs = [(folder / "runs" / task / "config.toml").read_text() for task in ("1", "2")]
    assert "learning_rate = 0.002" in configs[0]
    assert 'rule = "naive_padding"' in configs[1]
    for task in ("1", "2"):
        rows = (folder / "runs" / task / "iterations.csv").read_text().splitlines()
        assert len(rows) == 1 + 3, job.text()
