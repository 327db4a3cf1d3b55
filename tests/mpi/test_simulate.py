"""Ranks that simulate together write what one process writes."""

from pathlib import Path

import pytest
from mpi4py import MPI
from tests.jobs.tiny_experiment import tiny_experiment

from dynapipe_hpc.experiment.config import ExperimentConfig
from dynapipe_hpc.experiment.experiment import Experiment
from dynapipe_hpc.experiment.study.simulate import simulate
from dynapipe_hpc.job.job import Job
from dynapipe_hpc.job.ranks import Alone

pytestmark = pytest.mark.mpi

WORLD = MPI.COMM_WORLD
N_ITERATIONS = 3  # by two methods: one rank of four has less to do


def small_study() -> ExperimentConfig:
    tables = tiny_experiment(n_stages=2).model_dump(exclude_none=True)
    del tables["data"]["dataset"]
    tables["data"] |= {"lengths": {"n_samples": 100}, "long_samples": "cut_targets"}
    tables["training"]["iterations"] = N_ITERATIONS
    naive = {"name": "naive", "planner": {"batch": {"rule": "naive_padding"}}}
    methods = [naive, {"name": "ours", "planner": {"search": {"effort": 1000}}}]
    return ExperimentConfig.model_validate({**tables, "study": {"methods": methods}})


def test_the_number_of_ranks_changes_no_byte(tmp_path: Path) -> None:
    folder: Path = WORLD.bcast(tmp_path)
    files = Experiment(small_study())
    shares: list[float] = []
    planned = simulate(Job(WORLD), files, folder / "together", shares.append)
    n_items = 2 * N_ITERATIONS
    assert len(shares) == len(range(WORLD.rank, n_items, WORLD.size))
    assert shares[-1] == 1
    if WORLD.rank:
        assert planned == []
        return
    alone = simulate(Alone(), files, folder / "alone")
    assert [each.record for each in planned] == [each.record for each in alone]
    for name in ("config.toml", "planned.jsonl"):
        together, by_one = ((folder / f / name).read_bytes() for f in ("together", "alone"))
        assert together == by_one
