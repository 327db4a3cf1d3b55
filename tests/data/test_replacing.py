"""Files that appear whole or not at all."""

import errno
import os
import platform
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from dynapipe_hpc.data.errors import InputError, RunError
from dynapipe_hpc.data.replacing import check_output, check_replaceable, replacing


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


def test_a_device_is_not_replaced() -> None:
    with pytest.raises(InputError, match="is no regular file and is not replaced"):
        check_output(Path(os.devnull), [], force=True)


def test_a_socket_is_not_replaced(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)  # the name of a socket must be short
    with (
        socket.socket(socket.AF_UNIX) as listener,
        pytest.raises(InputError, match="is no regular file"),
    ):
        listener.bind("s")
        check_output(Path("s"), [], force=True)


def test_a_file_that_exists_is_replaced_by_force_alone(tmp_path: Path) -> None:
    path = tmp_path / "x"
    check_output(path, [], force=False)
    path.write_text("old")
    check_output(path, [], force=True)
    with pytest.raises(InputError, match=r"exists already; name another output, .*--force"):
        check_output(path, [], force=False)


def test_an_input_is_never_replaced(tmp_path: Path) -> None:
    path, same = tmp_path / "x", tmp_path / "y"
    path.write_text("old")
    same.symlink_to(path)
    with pytest.raises(InputError, match="is both an input and the output"):
        check_output(same, [tmp_path / "none", path], force=True)


def test_a_write_that_fails_is_named(tmp_path: Path) -> None:
    path = tmp_path / "x"
    with pytest.raises(RunError, match=r"x: cannot be written: No space left"), replacing(path):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
    assert list(tmp_path.iterdir()) == []


def test_what_a_killed_process_left_goes_with_the_next(tmp_path: Path) -> None:
    with subprocess.Popen([sys.executable, "-c", ""]) as ended:
        pass
    host = platform.node()
    left = tmp_path / f".x.{host}.{ended.pid}.partial"
    kept = [
        tmp_path / name
        for name in (
            f".x.{host}.{os.getppid()}.partial",  # is alive
            f".x.elsewhere.{ended.pid}.partial",
            f".xx.{host}.{ended.pid}.partial",
            f".x.{host}.{ended.pid}a.partial",
        )
    ]
    for path in (left, *kept):
        path.touch()
    with replacing(tmp_path / "x") as beside:
        beside.touch()
        assert not left.exists()
    assert set(tmp_path.iterdir()) == {tmp_path / "x", *kept}
