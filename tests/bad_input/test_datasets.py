"""HDF5 datasets that are damaged, or none."""

import zlib
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
    replaced,
    with_attribute,
)
from tests.bad_input.good import INSPECT_DATASET, PLAN
from tests.bad_input.oracle import assert_refused
from tests.bad_input.worker import Worker
from tests.examples.tokenized import with_header


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


def headed(**changes: object) -> Change:
    return lambda path: with_header(path, **changes)


WHOLE = "is not one piece of the file, uncompressed"
CHANGES: dict[str, tuple[Change, str]] = {
    **NO_FILES,
    "empty": (be(""), "not a complete HDF5 file"),
    "a signature and nothing else": (be(b"\x89HDF\r\n\x1a\n"), "not a complete HDF5 file"),
    "another format": (
        with_attribute("format", np.bytes_(b"x")),
        "not a dataset|neither a dataset",
    ),
    "a format that is no text": (
        with_attribute("format", np.bytes_(b"\xff\x1b[2J")),
        "not a dataset|neither a dataset",
    ),
    "another version": (with_attribute("schema_version", 99), "schema version 99"),
    "an older version": (with_attribute("schema_version", 3), "reads 5; make it again"),
    "a header of numbers": (replaced("header", 7), r"'header' has shape \(\) and type int64"),
    "a header that is no JSON": (replaced("header", np.bytes_(b"\xff")), "damaged dataset: header"),
    "no vocab_size": (headed(vocab_size=...), "damaged dataset: .*vocab_size"),
    "vocab_size of many digits": (headed(vocab_size=10**400), "damaged dataset: "),
    "eos_id beyond the vocabulary": (headed(eos_id=50), "damaged dataset: .*eos_id"),
    "start_id beyond the vocabulary": (headed(start_id=500), "start_id is 500, but vocab_size"),
    "turn_end_ids beyond the vocabulary": (headed(turn_end_ids=[500]), r"turn_end_ids is \(500,\)"),
    "turn_end_ids of text": (headed(turn_end_ids="end"), "header.turn_end_ids: .*'end'"),
    "no name of a task": (headed(task_names=[]), "points past the 0 names of tasks"),
    "a tokenizer of a number": (headed(tokenizer_name=2**60), "damaged dataset: "),
    "no inputs": (deleted("inputs"), "'inputs/.*' is missing"),
    "no tasks": (deleted("task_ids"), "'task_ids' is missing"),
    "a group for a dataset": (
        in_hdf5(lambda f: (f.__delitem__("crcs"), f.create_group("crcs"))),
        "'crcs' is a group, not an array",
    ),
    "tokens of floats": (replaced("inputs/tokens", np.ones(4)), "'inputs/tokens' has .*float64"),
    "tokens in two dimensions": (
        replaced("inputs/tokens", np.ones((2, 2), np.uint16)),
        r"'inputs/tokens' has shape \(2, 2\)",
    ),
    "fewer tokens than offsets say": (
        replaced("inputs/tokens", np.ones(7, np.uint16)),
        "'inputs/offsets' ends at .*, but there are 7",
    ),
    "offsets that wrap around": (
        replaced("inputs/offsets", np.array([0, 2**63 - 1, -(2**63), *[5] * 10])),
        "must start at 0 and never decrease",
    ),
    "fewer tasks than samples": (replaced("task_ids", np.zeros(3, np.int32)), "different lengths"),
    "terabytes of tasks": (huge("task_ids", "i4"), f"'task_ids' {WHOLE}"),
    "compressed zeros": (
        replaced("crcs", np.zeros(1 << 22, np.uint32), compression=9),
        f"'crcs' {WHOLE}",
    ),
    "a chunk that unfolds to a gigabyte": (a_bomb, f"'crcs' {WHOLE}"),
    "text of variable length": (replaced("header", "{}"), "'header' has shape"),
    "tokens from a pipe": (
        beside_a_pipe(linked("inputs/tokens", h5py.ExternalLink("pipe.h5", "/x"))),
        "'inputs/tokens' is a link",
    ),
    "a soft link to nothing": (linked("crcs", h5py.SoftLink("/none")), "'crcs' is "),
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
def test_a_bad_dataset_is_named_when_planning(worker: Worker, folder: Path, name: str) -> None:
    change, words = CHANGES[name]
    change(folder / "data.h5")
    assert_refused(worker, folder, PLAN, rf"^dynapipe-hpc: data\.h5: .*({words})")


@pytest.mark.parametrize("name", [name for name in CHANGES if name != "a cost table"])
def test_a_bad_dataset_is_named_when_inspected(worker: Worker, folder: Path, name: str) -> None:
    change, words = CHANGES[name]
    change(folder / "data.h5")
    assert_refused(worker, folder, INSPECT_DATASET, rf"^dynapipe-hpc: data\.h5: .*({words})")


@pytest.mark.parametrize("percent", range(1, 100, 7))
def test_a_cut_dataset_is_noticed(worker: Worker, folder: Path, percent: int) -> None:
    cut(folder / "data.h5", percent / 100)
    assert_refused(worker, folder, INSPECT_DATASET, r"data\.h5: not a complete HDF5 file")
