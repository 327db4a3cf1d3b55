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


def test_dense_packing_fills_rows_of_both_sides(tmp_path: Path) -> None:
    write_job_files(tmp_path, CHANGES)
    assert "decoder" in call(tmp_path, 2, "profile", "config.toml", "-o", "costs.h5")
    dense = "planner.batch={rule='dense_packing', rows_per_microbatch=1}"
    call(tmp_path, 2, "run", "config.toml", "--set", dense, "-o", "dense")
    real, padded = columns(tmp_path / "dense", "real_tokens", "padded_tokens")
    assert all(p % 8 == 0 for p in padded)
    assert sum(real) / sum(padded) > 0.6
