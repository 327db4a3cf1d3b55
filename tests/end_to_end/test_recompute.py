"""Recomputation from measurements to a run, as a user goes about it, where memory is tight."""

import re
from pathlib import Path

import pytest
from tests.jobs.command_line import call, columns
from tests.jobs.job_files import Tables, write_job_files

from dynapipe_hpc.planner.cost.table.profile_file import read_table

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]

TIGHT = "cluster.device_memory_bytes=13_000_000"
MODES = "recompute=['none','selective','full']"
ESTIMATED = f"planner.cost={{kind='analytic', {MODES}}}"

CHANGES: Tables = {
    "data": {"max_tokens": 256, "tokens_per_batch": 2048},
    "model": {"hidden_size": 64, "ffn_size": 256, "max_tokens": 256},
    "cluster": {"n_replicas": 1},
    "planner": {
        "cost": {
            "kind": "profiled",
            "path": "costs.h5",
            "recompute": ["none", "selective", "full"],
        },
        "batch": {"rule": "dynamic"},
    },
    "training": {"iterations": 3, "dtype": "float64"},
}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a configuration, its dataset and a table that was measured in two goes."""
    path = tmp_path_factory.mktemp("recompute")
    write_job_files(path, CHANGES)
    profile = ["profile", "config.toml", "--microbatch-tokens", "256", "-o", "costs.h5"]
    first = call(path, 2, *profile, "--set", "planner.cost.recompute=['none']")
    assert "recompute=full" not in first
    assert "recompute=full" in call(path, 2, *profile)
    assert read_table(path / "costs.h5").link is not None
    return path


def modes_planned(folder: Path, *settings: str) -> set[str]:
    """Modes of the micro-batches of the plan where memory is tight."""
    plan = call(folder, None, "plan", "config.toml", "--set", TIGHT, *settings)
    return {mode or "none" for mode in re.findall(r"\d+:\d+x\d+(?: (\w+))?", plan)}


def test_a_plan_mixes_modes_where_memory_is_tight(folder: Path) -> None:
    assert len(modes_planned(folder, "--set", ESTIMATED)) >= 2


def test_a_run_that_recomputes_has_the_losses_of_the_unsplit_model(folder: Path) -> None:
    call(folder, 2, "run", "config.toml", "--set", TIGHT, "-o", "tight")
    one = ["--set", "cluster.n_stages=1", "--set", "planner.cost={kind='analytic'}"]
    naive = ["--set", "planner.batch={rule='naive_padding', rows_per_microbatch=100}"]
    memory = ["--set", "cluster.device_memory_bytes=10_000_000_000"]
    call(folder, None, "run", "config.toml", *one, *naive, *memory, "-o", "unsplit")
    tight, unsplit = (
        columns(folder / run, "loss", "gradient_norm") for run in ("tight", "unsplit")
    )
    for found, expected in zip(tight, unsplit, strict=True):
        assert found == pytest.approx(expected, rel=1e-9)
    predicted, measured = columns(folder / "tight", "predicted_peak_bytes", "measured_peak_bytes")
    assert measured == pytest.approx(predicted, rel=0.05)
