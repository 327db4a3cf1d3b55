"""Files that appear whole or not at all."""

import os
import sys
from collections.abc import Iterator
from pathlib import Path
from types import FrameType
from typing import Any

import pytest

from dynapipe_hpc.data.atomic_write import atomic_write, remove_left_over


def test_a_file_is_replaced_at_the_end(tmp_path: Path) -> None:
    path = tmp_path / "x"
    path.write_text("old")
    with atomic_write(path) as beside:
        beside.write_text("new")
        assert path.read_text() == "old"
    assert path.read_text() == "new"
    assert list(tmp_path.iterdir()) == [path]


def test_a_failure_leaves_what_was_there(tmp_path: Path) -> None:
    path = tmp_path / "x"
    path.write_text("old")
    with pytest.raises(KeyboardInterrupt), atomic_write(path) as beside:
        beside.write_text("new")
        raise KeyboardInterrupt
    assert path.read_text() == "old"
    assert list(tmp_path.iterdir()) == [path]


def test_a_link_in_the_place_of_the_file_beside_is_not_followed(tmp_path: Path) -> None:
    victim, folder = tmp_path / "victim", tmp_path / "folder"
    victim.write_text("precious")
    folder.mkdir()
    with atomic_write(folder / "x") as beside:
        [partial] = folder.iterdir()
        partial.unlink()
        partial.symlink_to(victim)
        beside.write_text("new")
    assert victim.read_text() == "precious"


@pytest.fixture
def system_calls() -> Iterator[list[str]]:
    """Names of the system calls, in order."""
    calls: list[str] = []

    def note(_: FrameType, event: str, function: Any) -> None:
        if event == "c_call" and function.__module__ == "posix":
            calls.append(function.__name__)

    sys.setprofile(note)
    yield calls
    sys.setprofile(None)


def test_file_and_folder_are_on_disk_before_and_after_the_renaming(
    tmp_path: Path, system_calls: list[str]
) -> None:
    with atomic_write(tmp_path / "x") as beside:
        beside.write_text("new")
    order = [name for name in system_calls if name in {"fsync", "replace"}]
    assert order == ["fsync", "replace", "fsync"]


DAY_S = 24 * 3600


def test_what_a_killed_job_left_goes_when_it_is_a_day_old(tmp_path: Path) -> None:
    left, young, other = (
        tmp_path / f".{name}.{number:016x}.partial"
        for name, number in (("x", 1), ("x", 2), ("y", 3))
    )
    for path in (left, young, other):
        path.touch()
    a_folder = tmp_path / f".x.{4:016x}.partial"
    a_folder.mkdir()
    a_link = tmp_path / f".x.{5:016x}.partial"
    a_link.symlink_to(other)
    for path in (left, other, a_folder):
        os.utime(path, (path.stat().st_mtime - DAY_S - 1,) * 2)
    remove_left_over(tmp_path / "x")
    assert set(tmp_path.iterdir()) == {young, other, a_folder, a_link}
