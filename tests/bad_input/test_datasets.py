"""HDF5 datasets and cost tables that are damaged, make no sense, or are none."""

import re
import zlib
from collections.abc import Callable
from functools import cache
from pathlib import Path

import h5py
import numpy as np
import pytest
from tests.bad_input.changes import (
    NO_FILES,
    Change,
    be,
    beside_a_pipe,
    cut,
    deleted,
    huge,
    in_hdf5,
    linked,
    moved_behind,
    replaced,
    with_attribute,
)
from tests.bad_input.good import INSPECT_DATASET, INSPECT_TABLE, PLAN, PLAN_PROFILED
from tests.bad_input.worker import Worker, assert_refused

from dynapipe_hpc.data.errors import InputError
from dynapipe_hpc.planner.cost.table.profile_file import read_table


def a_bomb(path: Path) -> None:
    """Twelve numbers in one compressed chunk of a gigabyte, which takes a megabyte."""
    chunk = _gigabyte()
    with h5py.File(path, "a") as file:
        del file["crcs"]
        ids = file.create_dataset(
            "crcs", (12,), "u4", chunks=(1 << 28,), maxshape=(None,), compression=9
        )
        ids.id.write_direct_chunk((0,), chunk)


@cache
def _gigabyte() -> bytes:
    return zlib.compress(bytes(1 << 30), 9)


WHOLE = "is not stored as one complete, uncompressed piece of this file"
CHANGES: dict[str, tuple[Change, str]] = {
    **NO_FILES,
    "empty": (be(""), "not a complete HDF5 file"),
    "a signature and nothing else": (be(b"\x89HDF\r\n\x1a\n"), "not a complete HDF5 file"),
    "another format": (
        with_attribute("format", np.bytes_(b"x")),
        "not a dataset|neither a dataset",
    ),
    "an older version": (with_attribute("schema_version", 3), "reads 6; make it again"),
    "a header of numbers": (replaced("header", 7), "'header' is not as it was written"),
    "no inputs": (deleted("inputs"), "'inputs/.*' is missing"),
    "no tasks": (deleted("task_ids"), "'task_ids' is missing"),
    "a group for a dataset": (
        in_hdf5(lambda f: (f.__delitem__("crcs"), f.create_group("crcs"))),
        "'crcs' is a group, not an array",
    ),
    "tokens of floats": (replaced("inputs/tokens", np.ones(4)), "'inputs/tokens' has .*float64"),
    "terabytes of tasks": (huge("task_ids", "i4"), f"'task_ids' {WHOLE}"),
    "a chunk that unfolds to a gigabyte": (a_bomb, f"'crcs' {WHOLE}"),
    "tokens from a pipe": (
        beside_a_pipe(linked("inputs/tokens", h5py.ExternalLink("pipe.h5", "/x"))),
        "'inputs/tokens' is a link",
    ),
    "a soft link to itself": (linked("crcs", h5py.SoftLink("/crcs")), "'crcs' is "),
    "data in another file": (
        in_hdf5(
            lambda f: (
                f.__delitem__("crcs"),
                f.create_dataset("crcs", (12,), "u4", external=[("in.jsonl", 0, 48)]),
            )
        ),
        f"'crcs' {WHOLE}",
    ),
    "a cost table": (
        lambda path: path.write_bytes((path.parent / "table.h5").read_bytes()),
        "not a dataset|costs of|cost table",
    ),
}


@pytest.mark.parametrize("name", CHANGES)
def test_a_bad_dataset_is_named_when_planning_and_inspected(
    worker: Worker, folder: Path, name: str
) -> None:
    change, words = CHANGES[name]
    change(folder / "data.h5")
    for command in [PLAN, INSPECT_DATASET][: 1 if name == "a cost table" else 2]:
        assert_refused(worker, folder, command, rf"^dynapipe-hpc: data\.h5: .*({words})")


LAYER = "layers/tensor_parallel=1/recompute=none/layer"
FORWARD = f"{LAYER}/forward_ms"
SHAPE = (4, 3)


def cell(value: float, name: str = "forward_ms", place: tuple[int, int] = (0, 0)) -> Change:
    """One measurement is another number."""

    def change(file: h5py.File) -> None:
        file[f"{LAYER}/{name}"][place] = value

    return in_hdf5(change)


def renamed(old: str, new: str) -> Change:
    return in_hdf5(lambda file: file.move(old, new))


def everywhere(name: str, values: Callable[[h5py.Dataset], np.ndarray]) -> Change:
    """Other values of a quantity or axis of every layer."""

    def change(file: h5py.File) -> None:
        for layer in file["layers/tensor_parallel=1/recompute=none"].values():
            found = values(layer[name])
            del layer[name]
            layer[name] = found

    return in_hdf5(change)


def with_its_checksum(path: Path) -> None:
    """Makes a change of the numbers one on purpose."""
    with pytest.raises(InputError) as refused:
        read_table(path)
    for actual in re.findall(r"their checksum is (\w+)", str(refused.value)):
        with_attribute("checksum", actual)(path)


DAMAGED: dict[str, tuple[Change, str]] = {
    **NO_FILES,
    "empty": (be(""), "not a (complete HDF5 file|cost table)"),
    "one number is another": (cell(3.25), "not those that were written: their checksum is"),
    "another checksum": (with_attribute("checksum", "0" * 16), "checksum is .*, not '0000"),
    "another version": (with_attribute("schema_version", 99), "version 99"),
    "versions": (with_attribute("schema_version", [1, 1]), "version .1 1."),
    "element_bytes of NaN": (with_attribute("element_bytes", np.nan), "element_bytes|NaN"),
    "no model": (deleted("model"), "'model' is missing"),
    "no update": (deleted("update"), "'update' is missing"),
    "time of an update below 0": (
        with_attribute("optimizer_ms_per_byte", -1.0, "update"),
        "optimizer_ms_per_byte",
    ),
    "a link of no bandwidth": (with_attribute("bytes_per_ms", 0.0, "link"), "bytes_per_ms"),
    "a link of something else": (
        in_hdf5(lambda file: file["link"].attrs.create("colour", 3)),
        "colour",
    ),
    "no layers": (deleted("layers"), "'layers' is missing"),
    "no rows": (deleted(f"{LAYER}/rows"), "rows"),
    "times in words": (replaced(FORWARD, np.full(SHAPE, b"x")), "forward_ms"),
    "times of another shape": (replaced(FORWARD, np.ones((3, 4))), r"forward_ms.*\(3, 4\)"),
    "a time below 0": (cell(-1.0), "forward_ms.* -1"),
    "a time that is missing alone": (cell(np.nan, "backward_ms"), "backward_ms"),
    "a layer that was not measured at all": (
        in_hdf5(
            lambda f: [
                f[f"{LAYER}/{n}"].__setitem__(..., np.nan)
                for n in f[LAYER]
                if "_" in n and "tokens" not in n
            ]
        ),
        "layer",
    ),
    "rows that fall": (everywhere("rows", lambda rows: rows[:][::-1]), "rows"),
    "fewer lengths than times": (everywhere("row_tokens", lambda tokens: tokens[:2]), "forward_ms"),
    "terabytes of rows": (huge(f"{LAYER}/rows", "i8"), "rows"),
    "layers behind a soft link": (moved_behind("layers", h5py.SoftLink("/elsewhere")), "is a link"),
}
OTHERS: dict[str, tuple[Change, str]] = {
    "another hidden size": (
        with_attribute("hidden_size", 16, "model"),
        "another model: hidden_size is 16 there and 8",
    ),
    "a family that is no text": (
        with_attribute("family", np.bytes_(b"\xff\x1b"), "model"),
        "attribute 'family' is not UTF-8",
    ),
    "no head": (deleted("layers/tensor_parallel=1/recompute=none/head"), "head"),
    "no mode": (
        renamed("layers/tensor_parallel=1/recompute=none", "gone"),
        "no measurements|holds",
    ),
    "layers measured apart": (
        lambda path: [
            change(path) for change in (replaced(f"{LAYER}/rows", np.array([1, 2, 3, 4])),)
        ],
        "other rows",
    ),
    "a dataset": (
        lambda path: path.write_bytes((path.parent / "data.h5").read_bytes()),
        "is a dynapipe-hpc dataset, not a cost table",
    ),
    "no format": (with_attribute("format", None), "not a cost table"),
    "a format that is no text": (
        with_attribute("format", np.bytes_(b"\xff\x1b[2J")),
        "attribute 'format' is not UTF-8",
    ),
}


@pytest.mark.parametrize("name", [*DAMAGED, *OTHERS])
def test_a_bad_table_is_named_when_planning_and_inspected(
    worker: Worker, folder: Path, name: str
) -> None:
    change, words = (DAMAGED | OTHERS)[name]
    change(folder / "table.h5")
    if name in OTHERS:
        with_its_checksum(folder / "table.h5")
    for command in [PLAN_PROFILED, INSPECT_TABLE][: 1 if name in OTHERS else 2]:
        assert_refused(worker, folder, command, rf"^dynapipe-hpc: table\.h5: .*({words})")


@pytest.mark.parametrize("percent", range(1, 100, 7))
@pytest.mark.parametrize(
    ("name", "command", "start"),
    [("data.h5", INSPECT_DATASET, ""), ("table.h5", PLAN_PROFILED, "not a cost table: ")],
)
def test_a_cut_file_is_noticed(
    worker: Worker, folder: Path, name: str, command: tuple[str, ...], start: str, percent: int
) -> None:
    cut(folder / name, percent / 100)
    assert_refused(worker, folder, command, f"{name}: {start}not a complete HDF5 file")
