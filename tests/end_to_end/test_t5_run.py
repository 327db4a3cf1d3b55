"""A T5 from measurements to runs, as a user goes about it."""

from pathlib import Path

import pytest
from tests.jobs.command_line import call, columns
from tests.jobs.job_files import Tables, write_job_files

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]

CHANGES: Tables = {
    "data": {"max_tokens": 128},
    "model": {
        "family": "t5",
        "n_layers": 2,
        "hidden_size": 16,
        "n_heads": 2,
        "head_size": 8,
        "ffn_size": 32,
        "max_tokens": 136,
    },
    "cluster": {"n_replicas": 1, "device_memory_bytes": 1_000_000_000},
    "planner": {
        "cost": {"kind": "profiled", "path": "costs.h5"},
        "batch": {"rule": "dynamic"},
    },
    "training": {"iterations": 3, "dtype": "float64"},
}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a configuration, its dataset and a table."""
    path = tmp_path_factory.mktemp("t5")
    write_job_files(path, CHANGES)
    told = call(path, 2, "profile", "config.toml", "-o", "costs.h5")
    assert "decoder" in told
    return path


def test_a_run_over_two_stages_has_the_losses_of_one(folder: Path) -> None:
    call(folder, 2, "run", "config.toml", "-o", "two")
    call(folder, None, "run", "config.toml", "--set", "cluster.n_stages=1", "-o", "one")
    two, one = (columns(folder / run, "loss", "gradient_norm") for run in ("two", "one"))
    for found, expected in zip(two, one, strict=True):
        assert found == pytest.approx(expected, rel=1e-9)


def test_dense_packing_fills_rows_of_both_sides(folder: Path) -> None:
    dense = "planner.batch={rule='dense_packing', rows_per_microbatch=1}"
    call(folder, 2, "run", "config.toml", "--set", dense, "-o", "dense")
    real, padded = columns(folder / "dense", "real_tokens", "padded_tokens")
    assert all(p % 8 == 0 for p in padded)
    assert sum(real) / sum(padded) > 0.6
