"""Profiling as a user starts it on several ranks: what is wrong is said before it measures."""

from pathlib import Path

import pytest
from tests.jobs.command_line import finish
from tests.jobs.tiny_experiment import tiny_experiment

from dynapipe_hpc.experiment.load import to_toml

pytestmark = [pytest.mark.slow, pytest.mark.timeout(120)]

START_S = 15


def test_a_wrong_output_ends_all_ranks_with_one_message_before_they_measure(tmp_path: Path) -> None:
    (tmp_path / "config.toml").write_text(to_toml(tiny_experiment(n_stages=2)))
    much = ("--set", "data.tokens_per_batch=1048576")  # takes far longer than to start
    words = ("profile", "config.toml", *much, "-o", "none/costs.h5")
    job = finish(tmp_path, 2, *words, limit_s=START_S)
    assert job.returncode == 2
    (told,) = [line for line in job.stderr.splitlines() if line.startswith("dynapipe-hpc:")]
    assert "its folder 'none' does not exist" in told
    assert "Traceback" not in job.stderr
