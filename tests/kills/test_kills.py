"""A few of the kills that `make kill-test` makes in any number."""

from pathlib import Path

import pytest
from tests.jobs.command_line import write_job_files
from tests.kills.kill_ranks import kill_ranks, summary


@pytest.mark.slow
@pytest.mark.timeout(1200)
def test_killed_runs_end_with_the_same_weights(tmp_path: Path) -> None:
    write_job_files(tmp_path)
    assert summary(kill_ranks(tmp_path, n_kills=2, seed=7))["longest_end_s"] < 30
