"""`inspect` of a cost table."""

from pathlib import Path

import h5py
import pytest
from tests.examples.measured_layers import linear_table

from dynapipe_hpc.cli.main import main
from dynapipe_hpc.planner.cost.table.checksum import checksum_of
from dynapipe_hpc.planner.cost.table.profile_file import read_table, write_table


def test_a_cost_table_is_verified_if_it_has_a_checksum(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "x.h5"
    write_table(linear_table(), path)
    assert main(["inspect", str(path), "--verify"]) == 0
    verified = f"\nverified, checksum of the costs {checksum_of(read_table(path))}"
    assert verified in capsys.readouterr().out
    with h5py.File(path, "r+") as file:
        del file.attrs["checksum"]
    assert main(["inspect", str(path), "--verify"]) == 2
    assert "x.h5: has no checksum, as tables of older versions" in capsys.readouterr().err
