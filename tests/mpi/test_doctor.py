"""Findings of the doctor in a job of several ranks."""

import re
from pathlib import Path

import pytest
from mpi4py import MPI

from dynapipe_hpc.experiment.doctor.examine import examine
from dynapipe_hpc.experiment.doctor.finding import Case
from dynapipe_hpc.job.job import Job

pytestmark = pytest.mark.mpi

WORLD = MPI.COMM_WORLD
RANK, N_RANKS = WORLD.Get_rank(), WORLD.Get_size()


def test_all_ranks_are_examined_and_the_first_speaks(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """As if every half of them were on a host of its own."""
    folder, job = WORLD.bcast(tmp_path), Job(WORLD)
    n_hosts = min(2, N_RANKS)
    assert examine(Case(job, job.divide(RANK * n_hosts // N_RANKS), folder))
    said = capsys.readouterr().out
    if RANK > 0:
        assert said == ""
        return
    assert re.search(rf"  ranks +{N_RANKS} on ", said)
    assert re.search("  plan store +all bytes arrive, by one-sided access", said)
    assert ("one host" in said) == (n_hosts == 1)
    assert said.count("  torch  ") == 1
    assert str(folder) in said


def test_all_ranks_know_of_a_problem_of_one(capsys: pytest.CaptureFixture[str]) -> None:
    folder = Path(__file__) / "run"
    assert not examine(Case.from_arguments(Job(WORLD), None, [], folder))
    said = capsys.readouterr().out
    assert ("writing  PROBLEM: " in said) == (RANK == 0)


def test_torch_that_one_rank_lacks_keeps_no_other_waiting(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    if RANK == N_RANKS - 1:
        monkeypatch.setattr(
            "dynapipe_hpc.experiment.doctor.examine._torch", lambda: "torch cannot be loaded here"
        )
    config = Path(__file__).parents[2] / "configs" / "tiny_cpu.toml"
    folder = WORLD.bcast(tmp_path) / "run"
    assert not examine(Case.from_arguments(Job(WORLD), config, [], folder))
    assert ("torch cannot be loaded here" in capsys.readouterr().out) == (RANK == 0)
