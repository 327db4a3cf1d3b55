from pathlib import Path

import h5py
import pytest
from tests.oracles.measured_layers import linear_table
from tests.oracles.tokenized import write_samples

from dynapipe_hpc.cli.main import main
from dynapipe_hpc.data.errors import InputError
from dynapipe_hpc.experiment.describe_file import describe_file
from dynapipe_hpc.planner.cost.profile_file import write_table


def test_a_dataset_is_described_as_one(tmp_path: Path) -> None:
    path = write_samples(tmp_path / "x.h5")
    assert describe_file(path).startswith(f"{path}: dataset of ")


def test_a_cost_table_is_described_as_one(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "x.h5"
    write_table(linear_table(), path)
    assert main(["inspect", str(path)]) == 0
    shown = capsys.readouterr().out
    assert shown.startswith(f"{path}: costs of family gpt, ")
    assert "link: 0.5 ms + 0.1 GB/s" in shown


@pytest.mark.parametrize("attributes", [{}, {"format": "a photograph"}])
def test_another_hdf5_file_is_an_input_error(tmp_path: Path, attributes: dict[str, str]) -> None:
    path = tmp_path / "x.h5"
    with h5py.File(path, "w") as file:
        file.attrs.update(attributes)
    with pytest.raises(InputError, match=r"x.h5: neither a dataset nor a cost table"):
        describe_file(path)


def test_a_file_that_is_not_hdf5_is_an_input_error(tmp_path: Path) -> None:
    (tmp_path / "x.h5").write_text("no")
    with pytest.raises(InputError, match=r"x.h5: not a complete HDF5 file"):
        describe_file(tmp_path / "x.h5")


def test_a_missing_file_is_an_input_error(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"x.h5: No such file"):
        describe_file(tmp_path / "x.h5")
