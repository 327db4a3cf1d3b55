"""Split backward passes of packed rows from measurements to a run, as a user goes about it."""

import shutil
from pathlib import Path

import pytest
from tests.jobs.command_line import call, columns
from tests.jobs.job_files import Tables, write_job_files

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]

CHANGES: Tables = {
    "data": {"max_tokens": 256, "tokens_per_batch": 2048},
    "model": {"hidden_size": 64, "ffn_size": 256, "max_tokens": 256},
    "cluster": {"n_replicas": 1},
    "planner": {
        "cost": {"kind": "profiled", "path": "costs.h5", "online": True},
        "batch": {"rule": "dynamic", "layouts": ["packed"]},
        "schedule": {"split_backward": True, "rules": ["zb_h1"]},
    },
    "training": {"iterations": 6, "dtype": "float64"},
    "checkpoint": {"every": 3},
    "store": {"look_ahead": 1},
}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a configuration, its dataset, a table and a run."""
    path = tmp_path_factory.mktemp("split")
    write_job_files(path, CHANGES)
    call(path, 2, "profile", "config.toml", "--microbatch-tokens", "512", "-o", "costs.h5")
    call(path, 2, "run", "config.toml", "-o", "split")
    return path


def test_the_plan_is_packed_and_split_and_says_that_halves_were_measured(folder: Path) -> None:
    plan = call(folder, None, "plan", "config.toml", "--explain")
    assert "\nhalves of backward passes: measured\n" in plan
    assert ":packed " in plan
    assert " W0" in plan


def test_the_run_has_the_losses_of_the_unsplit_model(folder: Path) -> None:
    one = ["--set", "cluster.n_stages=1", "--set", "planner.cost={kind='analytic'}"]
    naive = ["--set", "planner.batch={rule='naive_padding', rows_per_microbatch=100}"]
    whole = ["--set", "planner.schedule={}", "--set", "cluster.device_memory_bytes=10_000_000_000"]
    call(folder, None, "run", "config.toml", *one, *naive, *whole, "-o", "unsplit")
    split, unsplit = (
        columns(folder / run, "loss", "gradient_norm") for run in ("split", "unsplit")
    )
    for found, expected in zip(split, unsplit, strict=True):
        assert found == pytest.approx(expected, rel=1e-9)


def test_a_run_that_goes_on_plans_by_what_was_measured_before(folder: Path) -> None:
    """Iteration 5 is planned by iteration 4, which every run measures anew."""
    shutil.copytree(folder / "split", folder / "again")
    shutil.rmtree(folder / "again" / "checkpoints" / "000006")
    call(folder, 2, "run", "config.toml", "-o", "again")
    (before_ms,), (again_ms,) = (
        columns(folder / run, "predicted_ms") for run in ("split", "again")
    )
    assert again_ms[:5] == before_ms[:5]


def test_memory_is_as_planned(folder: Path) -> None:
    predicted, measured = columns(folder / "split", "predicted_peak_bytes", "measured_peak_bytes")
    assert measured == pytest.approx(predicted, rel=0.05)
