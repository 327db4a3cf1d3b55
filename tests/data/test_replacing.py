"""Files that appear whole or not at all."""

import os
from pathlib import Path

import pytest

from dynapipe_hpc.data.errors import InputError
from dynapipe_hpc.data.replacing import check_replaceable, replacing


def test_a_file_is_replaced_at_the_end(tmp_path: Path) -> None:
    path = tmp_path / "x"
    path.write_text("old")
    with replacing(path) as beside:
        beside.write_text("new")
        assert path.read_text() == "old"
    assert path.read_text() == "new"
    assert list(tmp_path.iterdir()) == [path]


def test_a_failure_leaves_what_was_there(tmp_path: Path) -> None:
    path = tmp_path / "x"
    path.write_text("old")
    with pytest.raises(KeyboardInterrupt), replacing(path) as beside:
        beside.write_text("new")
        raise KeyboardInterrupt
    assert path.read_text() == "old"
    assert list(tmp_path.iterdir()) == [path]


def test_a_missing_folder_is_named(tmp_path: Path) -> None:
    path = tmp_path / "none" / "x"
    with pytest.raises(InputError, match=r"its folder '.*none' does not exist"), replacing(path):
        pass


def test_a_folder_is_not_replaced(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="is a folder; name a file in it"), replacing(tmp_path):
        pass


def test_a_folder_that_may_not_be_written_is_named(tmp_path: Path) -> None:
    tmp_path.chmod(0o500)
    if os.access(tmp_path, os.W_OK):
        pytest.skip("root may write everywhere")
    with pytest.raises(InputError, match="cannot be written"):
        check_replaceable(tmp_path / "x")
