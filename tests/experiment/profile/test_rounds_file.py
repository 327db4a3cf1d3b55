"""Rounds of an interrupted profile, in files that say anything."""

import os
import signal
from collections.abc import Callable, Iterator
from pathlib import Path

import h5py
import numpy as np
import pytest

from dynapipe_hpc.data.errors import InputError
from dynapipe_hpc.experiment.profile.rounds import StackRounds
from dynapipe_hpc.experiment.profile.rounds_file import RoundsFile

ROUNDS = StackRounds(3, np.ones((2, 4, 3, 3)), (np.ones((2, 4, 3, 2)), np.ones((2, 3, 3, 2))))


@pytest.fixture
def table(tmp_path: Path) -> Iterator[Path]:
    """A table with rounds beside it; who waits for ever is ended."""
    signal.signal(signal.SIGALRM, signal.SIG_DFL)
    signal.alarm(20)
    RoundsFile(tmp_path / "t.h5", "mine").put("layer", ROUNDS)
    yield tmp_path / "t.h5"
    signal.alarm(0)


def rounds_path(table: Path) -> Path:
    return table.with_suffix(".rounds.h5")


def test_rounds_are_found_again(table: Path) -> None:
    found = RoundsFile(table, "mine").get("layer")
    assert found is not None
    assert (found.n_rounds, len(found.times_ms)) == (3, 2)
    np.testing.assert_array_equal(found.memory, ROUNDS.memory)
    np.testing.assert_array_equal(found.times_ms[1], ROUNDS.times_ms[1])


def test_a_table_id_of_variable_length_is_read(table: Path) -> None:
    with h5py.File(rounds_path(table), "a") as file:
        file.attrs["table_id"] = "mine"
    assert RoundsFile(table, "mine").get("layer") is not None


def test_a_pipe_is_named_and_not_waited_for(table: Path) -> None:
    rounds_path(table).unlink()
    os.mkfifo(rounds_path(table))
    with pytest.raises(InputError, match=r"t\.rounds\.h5: is not a regular file"):
        RoundsFile(table, "mine")


def from_a_pipe(file: h5py.File) -> None:
    os.mkfifo(Path(file.filename).with_name("pipe.h5"))
    del file["layer/memory"]
    file["layer/memory"] = h5py.ExternalLink("pipe.h5", "/x")


def a_pipe_for_a_name(file: h5py.File) -> None:
    os.mkfifo(Path(file.filename).with_name("pipe.h5"))
    file["another"] = h5py.ExternalLink("pipe.h5", "/x")


def a_pipe_for_times(file: h5py.File) -> None:
    os.mkfifo(Path(file.filename).with_name("pipe.h5"))
    del file["layer/times_ms"]
    file["layer/times_ms"] = h5py.ExternalLink("pipe.h5", "/x")


def another(name: str, shape: tuple[int, ...], dtype: str = "f8") -> Callable[[h5py.File], None]:
    def change(file: h5py.File) -> None:
        del file[name]
        file.create_dataset(name, shape, dtype, chunks=tuple(min(n, 64) for n in shape) or None)

    return change


DAMAGED: dict[str, Callable[[h5py.File], None]] = {
    "memory from a pipe": from_a_pipe,
    "a stack from a pipe": a_pipe_for_a_name,
    "times from a pipe": a_pipe_for_times,
    "memory of terabytes": another("layer/memory", (1 << 40,)),
    "memory of four dimensions and terabytes": another("layer/memory", (1 << 20, 1 << 20, 3, 3)),
    "memory of one number": another("layer/memory", ()),
    "memory in words": another("layer/memory", (2, 4, 3, 3), "S4"),
    "memory of other stacks": another("layer/memory", (2, 4, 2, 3)),
    "times of terabytes": another("layer/times_ms/000", (1 << 40,)),
    "times in words": another("layer/times_ms/000", (2, 4, 3, 2), "S4"),
    "times of other ranks": another("layer/times_ms/000", (1, 4, 3, 2)),
    "times of more micro-batches": another("layer/times_ms/001", (2, 5, 3, 2)),
    "a number of rounds in words": lambda f: f["layer"].attrs.__setitem__("n_rounds", "three"),
    "a number of rounds that is none": lambda f: f["layer"].attrs.__setitem__("n_rounds", np.nan),
    "numbers of rounds": lambda f: f["layer"].attrs.__setitem__("n_rounds", [3, 3]),
    "fewer rounds than were measured": lambda f: f["layer"].attrs.__setitem__("n_rounds", 1),
    "billions of rounds": lambda f: f["layer"].attrs.__setitem__("n_rounds", 1 << 40),
    "no number of rounds": lambda f: f["layer"].attrs.__delitem__("n_rounds"),
    "a dataset for a stack": lambda f: f.create_dataset("another", data=[1.0]),
    "an id of a number": lambda f: f.attrs.__setitem__("table_id", 7),
    "ids": lambda f: f.attrs.__setitem__("table_id", ["mine", "mine"]),
    "an id that is no text": lambda f: f.attrs.__setitem__("table_id", np.bytes_(b"\xff")),
}


@pytest.mark.parametrize("name", DAMAGED)
def test_what_is_damaged_is_measured_again(table: Path, name: str) -> None:
    with h5py.File(rounds_path(table), "a") as file:
        DAMAGED[name](file)
    assert RoundsFile(table, "mine").get("layer") is None
