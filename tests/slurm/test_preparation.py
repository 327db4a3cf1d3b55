"""The jobs before a training: text to a dataset, and what layers cost."""

from pathlib import Path

import pytest
from tests.slurm.cluster import Cluster
from tests.slurm.jobs import SCRIPTS, submit

from dynapipe_hpc.data.dataset.dataset_file import DatasetFile
from dynapipe_hpc.planner.cost.table.profile_file import read_table

pytestmark = [pytest.mark.slurm, pytest.mark.timeout(300)]

SIZES = ["--nodes=2", "--ntasks-per-node=1", "--cpus-per-task=2"]


def test_the_ranks_of_two_nodes_make_one_dataset(
    cluster: Cluster, folder: Path, open_mpi: dict[str, str]
) -> None:
    words = [*SIZES, str(SCRIPTS / "preprocess.sbatch"), "corpus.jsonl", "new.h5"]
    job = submit(cluster, folder, words, open_mpi | {"LAUNCHER": "srun --mpi=pmix"})
    assert job.end() == "COMPLETED", job.text()
    with DatasetFile(folder / "new.h5") as new, DatasetFile(folder / "corpus.h5") as alone:
        assert new.target_lengths.tolist() == alone.target_lengths.tolist()


def test_the_ranks_of_a_run_measure_its_layers(
    cluster: Cluster, folder: Path, open_mpi: dict[str, str]
) -> None:
    words = [*SIZES, str(SCRIPTS / "profile.sbatch"), "config.toml", "-o", "costs.h5"]
    words += ["--set", "cluster.n_replicas=1"]
    job = submit(cluster, folder, words, open_mpi | {"LAUNCHER": "srun --mpi=pmix"})
    assert job.end() == "COMPLETED", job.text()
    assert read_table(folder / "costs.h5").provenance["ranks"] == "2"
