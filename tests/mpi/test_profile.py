"""Profiling on as many ranks as a run has."""

import pytest
from mpi4py import MPI
from tests.oracles.tiny_experiment import tiny_experiment

from dynapipe_hpc.experiment.launch import Job
from dynapipe_hpc.experiment.profile import profile
from dynapipe_hpc.experiment.profile_grid import ProfileGrid

pytestmark = pytest.mark.mpi


def test_ranks_measure_together_and_the_first_has_the_table() -> None:
    job = Job(MPI.COMM_WORLD)
    n_stages = 2 if job.size % 2 == 0 else 1
    config = tiny_experiment(n_stages, job.size // n_stages)
    grid = ProfileGrid.of(config, max_tokens=32)
    [table] = profile(job, config, grid, repetition_s=0.0, on_progress=lambda _: None)
    assert (table is not None) == job.is_first
    if table is not None:
        assert (table.link is not None) == (job.size > 1)
        assert table.update.optimizer_ms_per_byte > 0
        assert table.provenance["ranks"] == str(job.size)
