"""Profiling as a user starts it on several ranks, and what can go wrong before it measures."""

import re
import subprocess
from pathlib import Path

import pytest
from tests.jobs.command_line import finish
from tests.jobs.tiny_experiment import tiny_experiment

from dynapipe_hpc.experiment.load import to_toml
from dynapipe_hpc.planner.cost.table.profile_file import read_table

pytestmark = [pytest.mark.slow, pytest.mark.timeout(120)]

START_S = 15


def profile(
    folder: Path, n_ranks: int, *arguments: str, limit_s: float = 100
) -> "subprocess.CompletedProcess[str]":
    (folder / "config.toml").write_text(to_toml(tiny_experiment(n_stages=2)))
    return finish(folder, n_ranks, "profile", "config.toml", *arguments, limit_s=limit_s)


def test_the_ranks_of_a_run_make_one_table(tmp_path: Path) -> None:
    job = profile(tmp_path, 2, "-o", "costs.h5")
    assert job.returncode == 0, job.stderr
    assert read_table(tmp_path / "costs.h5").link is not None


@pytest.mark.parametrize(
    ("n_ranks", "output", "message"),
    [
        (3, "costs.h5", "needs 2 ranks .* but this job has 3; start it with mpiexec -n 2"),
        (2, "none/costs.h5", "its folder 'none' does not exist"),
        (2, ".", "is a folder"),
    ],
)
def test_wrong_input_ends_all_ranks_with_one_message_before_they_measure(
    tmp_path: Path, n_ranks: int, output: str, message: str
) -> None:
    much = ["--set", "data.tokens_per_batch=1048576"]  # takes far longer than to start
    job = profile(tmp_path, n_ranks, "-o", output, *much, limit_s=START_S)
    told = [line for line in job.stderr.splitlines() if line.startswith("dynapipe-hpc:")]
    assert job.returncode == 2
    assert len(told) == 1
    assert re.search(message, told[0])
    assert "Traceback" not in job.stderr
