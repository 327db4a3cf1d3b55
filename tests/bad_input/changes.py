"""Ways to spoil a file that hold for every kind of file."""

import os
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import h5py

Change = Callable[[Path], object]


def be(content: bytes | str) -> Change:
    """Something else."""
    data = content.encode() if isinstance(content, str) else content
    return lambda path: path.write_bytes(data)


def be_missing(path: Path) -> None:
    path.unlink()


def be_a_folder(path: Path) -> None:
    path.unlink()
    path.mkdir()


def be_a_link(target: str) -> Change:
    def change(path: Path) -> None:
        path.unlink()
        path.symlink_to(target or path.name)

    return change


be_a_link_to_itself = be_a_link("")


def be_a_pipe(path: Path) -> None:
    """A pipe that nobody writes into."""
    path.unlink()
    os.mkfifo(path)


def be_huge(path: Path) -> None:
    """More than any memory holds, and nearly nothing on the disk."""
    os.truncate(path, 1 << 40)


NO_FILES: dict[str, tuple[Change, str]] = {
    "missing": (be_missing, "[Nn]o such file"),
    "folder": (be_a_folder, "is a folder"),
    "link to itself": (be_a_link_to_itself, "Too many levels of symbolic links"),
    "device": (be_a_link("/dev/zero"), "is not a regular file"),
    "pipe": (be_a_pipe, "is not a regular file"),
}


def cut(path: Path, share: float) -> None:
    """Keeps the start."""
    os.truncate(path, int(share * path.stat().st_size))


def flip(path: Path, draw: random.Random, n_bits: int = 1) -> None:
    """Changes bits anywhere."""
    data = bytearray(path.read_bytes())
    for _ in range(n_bits):
        data[draw.randrange(len(data))] ^= 1 << draw.randrange(8)
    path.write_bytes(data)


def scramble(path: Path, draw: random.Random) -> None:
    """Drops, repeats, swaps or replaces some pieces, as a slip of an editor or a disk may."""
    data = path.read_bytes()
    for _ in range(draw.randint(1, 4)):
        start = draw.randrange(len(data) + 1)
        end = min(len(data), start + draw.choice((1, 1, 2, 8, 100)))
        piece = data[start:end]
        other = draw.choice(
            (b"", piece * 2, draw.randbytes(len(piece)), piece[::-1], draw.choice(TOKENS))
        )
        data = data[:start] + other + data[end:]
    path.write_bytes(data)


TOKENS = (
    *(b'"', b"{", b"}", b"[", b"]", b",", b"=", b"\n", b"\x00", b"\xff", b"\\", b"null", b"-1"),
    *(b"1e999", b"nan", b"0", b"9" * 30, b"true", b"\xed\xa0\x80", b"\xef\xbb\xbf", b"\r", b".5"),
)


def in_hdf5(change: Callable[[h5py.File], object]) -> Change:
    """Changes what an HDF5 file holds."""

    def change_file(path: Path) -> None:
        with h5py.File(path, "a") as file:
            change(file)

    return change_file


def in_place_of(name: str, make: Callable[[h5py.File], object]) -> Change:
    """Something else under the name of a dataset or group."""

    def replace(file: h5py.File) -> None:
        del file[name]
        make(file)

    return in_hdf5(replace)


def replaced(name: str, values: Any, **options: Any) -> Change:
    """Other values of a dataset; `options` are those of `create_dataset`."""
    return in_place_of(name, lambda file: file.create_dataset(name, data=values, **options))


def deleted(name: str) -> Change:
    return in_place_of(name, lambda _: None)


def with_attribute(name: str, value: Any, group: str = "/") -> Change:
    """Another value of an attribute; None for none."""

    def put(file: h5py.File) -> None:
        del file[group].attrs[name]
        if value is not None:
            file[group].attrs[name] = value

    return in_hdf5(put)


def huge(name: str, dtype: str, shape: tuple[int, ...] = (1 << 40,)) -> Change:
    """A dataset of terabytes, none of which is in the file."""
    chunks = tuple(min(n, 1024) for n in shape)
    return in_place_of(name, lambda file: file.create_dataset(name, shape, dtype, chunks=chunks))


def beside_a_pipe(change: Change) -> Change:
    """A change, with a pipe that nobody writes beside the file."""

    def change_both(path: Path) -> None:
        os.mkfifo(path.with_name("pipe.h5"))
        change(path)

    return change_both


def moved_behind(name: str, link: Any) -> Change:
    """A group or dataset that is reached through a link."""

    def move(file: h5py.File) -> None:
        file.move(name, "elsewhere")
        file[name] = link

    return in_hdf5(move)


def linked(name: str, link: Any) -> Change:
    return in_place_of(name, lambda file: file.__setitem__(name, link))
