"""Files that a verb may overwrite."""

import socket
from pathlib import Path

import pytest

from dynapipe_hpc.data.atomic_write import FileKind, check_output
from dynapipe_hpc.data.errors import InputError

OURS = FileKind("a file of ours", lambda path: path.read_text() == "ours")


def test_a_socket_is_not_replaced(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)  # the name of a socket must be short
    with (
        socket.socket(socket.AF_UNIX) as listener,
        pytest.raises(InputError, match="is not a regular file"),
    ):
        listener.bind("s")
        check_output(Path("s"), [], OURS, force=True)


def test_a_file_of_the_kind_is_replaced_by_force_alone(tmp_path: Path) -> None:
    path = tmp_path / "x"
    check_output(path, [], OURS, force=False)
    path.write_text("ours")
    check_output(path, [], OURS, force=True)
    with pytest.raises(InputError, match=r"already exists; name another output, .*--force"):
        check_output(path, [], OURS, force=False)


def test_an_input_is_never_replaced(tmp_path: Path) -> None:
    path, same = tmp_path / "x", tmp_path / "y"
    path.write_text("ours")
    same.symlink_to(path)
    with pytest.raises(InputError, match="is both an input and the output"):
        check_output(same, [tmp_path / "none", path], OURS, force=True)
