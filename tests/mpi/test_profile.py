"""Profiling on as many ranks as a run has."""

from pathlib import Path

import pytest
from mpi4py import MPI
from tests.oracles.tiny_experiment import tiny_experiment

from dynapipe_hpc.experiment.launch import Job
from dynapipe_hpc.experiment.profile import profile
from dynapipe_hpc.experiment.profile_grid import ProfileGrid
from dynapipe_hpc.planner.cost.config import ProfiledConfig
from dynapipe_hpc.planner.cost.profiled import ProfiledCost

pytestmark = pytest.mark.mpi


@pytest.mark.parametrize("n_shards", [1, 2])
@pytest.mark.parametrize("n_stages", [1, 2])
def test_ranks_measure_together_and_the_first_has_the_table(n_stages: int, n_shards: int) -> None:
    job = Job(MPI.COMM_WORLD)
    if job.size % (n_stages * n_shards):
        pytest.skip(f"{job.size} ranks do not make {n_stages} stages of {n_shards} shards")
    config = tiny_experiment(n_stages, job.size // (n_stages * n_shards), n_shards)
    grid = ProfileGrid.of(config, max_tokens=32)
    [table] = profile(job, config, grid, repetition_s=0.0, on_progress=lambda _: None)
    assert (table is not None) == job.is_first
    if table is not None:
        assert (table.link is not None) == (job.size > n_shards)
        assert {key.tensor_parallel for key in table.layers} == {n_shards}
        ProfiledCost(table, config.model, config.cluster, ProfiledConfig(path=Path("t.h5")))
        assert table.update.optimizer_ms_per_byte > 0
        assert table.provenance["ranks"] == str(job.size)
