"""The one command under Slurm: two nodes, put back while it trains, to a tuned model."""

import subprocess
import sys
from pathlib import Path

import pytest
from tests.slurm.cluster import SCRIPTS, Cluster, submit

pytestmark = [pytest.mark.slurm, pytest.mark.timeout(600)]

SIZES = ["--nodes=2", "--ntasks-per-node=1", "--cpus-per-task=2"]


def test_a_job_put_back_ends_with_the_model(
    cluster: Cluster, folder: Path, open_mpi: dict[str, str]
) -> None:
    command = [str(Path(sys.executable).with_name("dynapipe-hpc")), "demo-corpus", "chats.jsonl"]
    made = [*command, "--samples", "300", "--chat", "--model", "model"]
    subprocess.run(made, cwd=folder, check=True, timeout=60)
    words = ["model", "chats.jsonl", "-o", "tuned", "--memory", "1GB", "--epochs", "4"]
    script = str(SCRIPTS / "finetune.sbatch")
    launcher = open_mpi | {"LAUNCHER": "srun --mpi=pmix"}
    job = submit(cluster, folder, [*SIZES, script, *words], launcher)
    job.wait_for(lambda job: len(job.iterations()) > 3)
    cluster.call("scontrol", "requeue", str(job.job_id))
    assert job.end() == "COMPLETED", job.text()
    assert job.n_restarts == 1
    assert "loss on samples that were held out" in job.text()
    assert (folder / "tuned" / "model" / "model.safetensors").exists()
