from dataclasses import replace
from pathlib import Path

import h5py
import pytest
from tests.examples.measured_layers import SHAPE, linear_table
from tests.jobs.tiny_experiment import tiny_experiment

from dynapipe_hpc.architecture.families import shape_from_values
from dynapipe_hpc.cli.main import main
from dynapipe_hpc.data.errors import InputError
from dynapipe_hpc.experiment.explain.describe_file import verify_file
from dynapipe_hpc.experiment.load import to_toml
from dynapipe_hpc.planner.cost.table.checksum import checksum_of
from dynapipe_hpc.planner.cost.table.profile_file import read_table, write_table

MODEL = shape_from_values(SHAPE.model_dump())


def test_a_cost_table_is_verified_and_goes_with_an_experiment(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    config = tiny_experiment().model_copy(update={"model": MODEL})
    (tmp_path / "config.toml").write_text(to_toml(config))
    path = tmp_path / "x.h5"
    write_table(replace(linear_table(), provenance={"threads": "9"}), path)
    assert main(["inspect", str(path), "--verify", "--config", str(tmp_path / "config.toml")]) == 0
    shown = capsys.readouterr().out
    assert f"\ncan be used: costs measured in padded rows, from {path}" in shown
    assert "was measured with threads 9 (here 1)" in shown
    assert f"\nverified, checksum of the costs {checksum_of(read_table(path))}" in shown


def test_a_cost_table_without_a_checksum_cannot_be_verified(tmp_path: Path) -> None:
    path = tmp_path / "x.h5"
    write_table(linear_table(), path)
    with h5py.File(path, "r+") as file:
        del file.attrs["checksum"]
    with pytest.raises(InputError, match=r"x.h5: has no checksum, as tables of older versions"):
        verify_file(path)
