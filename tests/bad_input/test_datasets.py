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

OFFSETS = np.arange(13)


def a_bomb(path: Path) -> None:
    """Twelve numbers in one compressed chunk of a gigabyte, which takes a megabyte."""
    chunk = _gigabyte()
    with h5py.File(path, "a") as file:
        del file["task_ids"]
        ids = file.create_dataset(
            "task_ids", (12,), "i4", chunks=(1 << 28,), maxshape=(None,), compression=9
        )
        ids.id.write_direct_chunk((0,), chunk)


@cache
def _gigabyte() -> bytes:
    return zlib.compress(bytes(1 << 30), 9)


def with_a_filter_of_number(number: int) -> Change:
    """An array that only a plugin could read."""

    def change(file: h5py.File) -> None:
        del file["task_ids"]
        layout = h5py.h5p.create(h5py.h5p.DATASET_CREATE)
        layout.set_chunk((12,))
        layout.set_filter(number, h5py.h5z.FLAG_OPTIONAL)
        space = h5py.h5s.create_simple((12,))
        h5py.h5d.create(file.id, b"task_ids", h5py.h5t.NATIVE_INT32, space, layout)

    return in_hdf5(change)


CHANGES: dict[str, tuple[Change, str]] = {
    **NO_FILES,
    "empty": (be(""), "not a complete HDF5 file"),
    "text": (be("no HDF5\n" * 100), "not a complete HDF5 file"),
    "zeros": (be(bytes(10_000)), "not a complete HDF5 file"),
    "a signature and nothing else": (be(b"\x89HDF\r\n\x1a\n"), "not a complete HDF5 file"),
    "another format": (
        with_attribute("format", np.bytes_(b"x")),
        "not a dataset|neither a dataset",
    ),
    "no format": (with_attribute("format", None), "not a dataset|neither a dataset"),
    "a format of a number": (with_attribute("format", 7), "not a dataset|neither a dataset"),
    "a format that is no text": (
        with_attribute("format", np.bytes_(b"\xff\x1b[2J")),
        "not a dataset|neither a dataset",
    ),
    "another version": (with_attribute("schema_version", 99), "schema version 99"),
    "an older version": (with_attribute("schema_version", 2), "reads 3 and 4; make it again"),
    "a version in words": (with_attribute("schema_version", "one"), "schema version one"),
    "versions": (with_attribute("schema_version", [1, 1]), "schema version .1 1."),
    "no version": (with_attribute("schema_version", None), "schema version None"),
    "no vocab_size": (with_attribute("vocab_size", None), "damaged dataset: .*vocab_size"),
    "vocab_size of 0": (with_attribute("vocab_size", 0), "damaged dataset: .*vocab_size"),
    "vocab_size below 0": (with_attribute("vocab_size", -5), "damaged dataset: .*vocab_size"),
    "vocab_size of several": (with_attribute("vocab_size", [3, 4]), "damaged dataset: "),
    "vocab_size in words": (with_attribute("vocab_size", "many"), "damaged dataset: "),
    "vocab_size of NaN": (with_attribute("vocab_size", np.nan), "damaged dataset: "),
    "no eos_id": (with_attribute("eos_id", None), "damaged dataset: .*eos_id"),
    "eos_id beyond the vocabulary": (with_attribute("eos_id", 50), "damaged dataset: .*eos_id"),
    "eos_id below 0": (with_attribute("eos_id", -1), "damaged dataset: .*eos_id"),
    "no tokenizer": (with_attribute("tokenizer_name", None), "damaged dataset: .*tokenizer_name"),
    "a tokenizer that is no text": (
        with_attribute("tokenizer_name", np.bytes_(b"\xff\xfe")),
        "damaged dataset: ",
    ),
    "a tokenizer of a number": (with_attribute("tokenizer_name", 2**60), "damaged dataset: "),
    "sources of numbers": (with_attribute("sources", [1, 2]), "damaged dataset: "),
    "one source": (with_attribute("sources", "a.jsonl"), "damaged dataset: "),
    "no created": (with_attribute("created", None), "damaged dataset: .*created"),
    "no inputs": (deleted("inputs"), "'inputs/.*' is missing"),
    "no input tokens": (deleted("inputs/tokens"), "'inputs/tokens' is missing"),
    "no target offsets": (deleted("targets/offsets"), "'targets/offsets' is missing"),
    "no tasks": (deleted("task_ids"), "'task_ids' is missing"),
    "no names of tasks": (deleted("task_names"), "'task_names' is missing"),
    "a group for a dataset": (
        in_hdf5(lambda f: (f.__delitem__("task_ids"), f.create_group("task_ids"))),
        "'task_ids' is a group, not an array",
    ),
    "tokens of floats": (replaced("inputs/tokens", np.ones(4)), "'inputs/tokens' has .*float64"),
    "tokens below 0": (replaced("inputs/tokens", [-1]), "'inputs/tokens' has .*int64"),
    "tokens of words": (replaced("inputs/tokens", np.array([b"a"])), "'inputs/tokens' has "),
    "tokens in two dimensions": (
        replaced("inputs/tokens", np.ones((2, 2), np.uint16)),
        r"'inputs/tokens' has shape \(2, 2\)",
    ),
    "one token alone": (replaced("inputs/tokens", np.uint16(1)), r"'inputs/tokens' has shape \(\)"),
    "tokens of records": (
        replaced("inputs/tokens", np.zeros(3, [("a", "u2"), ("b", "u2")])),
        "'inputs/tokens' has ",
    ),
    "fewer tokens than offsets say": (
        replaced("inputs/tokens", np.ones(7, np.uint16)),
        "'inputs/offsets' ends at .*, but 'inputs/tokens' holds 7",
    ),
    "offsets that fall": (
        replaced("inputs/offsets", OFFSETS[::-1].copy()),
        "must start at 0 and never decrease",
    ),
    "offsets that start late": (
        replaced("inputs/offsets", OFFSETS + 1),
        "must start at 0 and never decrease",
    ),
    "offsets below 0": (replaced("inputs/offsets", -OFFSETS), "must start at 0 and never decrease"),
    "offsets that wrap around": (
        replaced("inputs/offsets", np.array([0, 2**63 - 1, -(2**63), 5])),
        "must start at 0 and never decrease",
    ),
    "offsets past the end": (
        replaced("inputs/offsets", OFFSETS * 1000),
        "'inputs/offsets' ends at 12000, but",
    ),
    "no offsets": (
        replaced("inputs/offsets", np.zeros(0, np.int64)),
        "must start at 0 and never decrease",
    ),
    "offsets of floats": (replaced("inputs/offsets", OFFSETS / 2), "'inputs/offsets' has "),
    "offsets of fewer samples": (
        replaced("targets/offsets", np.array([0, 78])),
        "'targets/offsets' .*holds 2 numbers|holds 2 numbers",
    ),
    "an empty target": (
        replaced("targets/offsets", np.array([0, 0, *range(2, 12), 78])),
        "sample 0 has an empty target",
    ),
    "tasks past the names": (replaced("task_ids", np.full(12, 9, np.int32)), "'task_ids' points"),
    "tasks below 0": (replaced("task_ids", np.full(12, -1, np.int32)), "'task_ids' points"),
    "fewer tasks than samples": (replaced("task_ids", np.zeros(3, np.int32)), "'task_ids'"),
    "names of tasks that are no text": (
        replaced("task_names", np.array([b"\xff", b"\xfe"])),
        "damaged dataset: ",
    ),
    "no name of a task": (replaced("task_names", np.zeros(0, "S1")), "'task_ids' points past"),
    "terabytes of offsets": (huge("inputs/offsets", "i8"), "'inputs/offsets' .*not .*in the file"),
    "terabytes of tasks": (huge("task_ids", "i4"), "'task_ids' .*not .*in the file"),
    "terabytes of names": (huge("task_names", "S100"), "'task_names' .*not .*in the file"),
    "terabytes of tokens": (huge("inputs/tokens", "u2"), "'inputs/"),
    "a number of terabytes": (huge("inputs/offsets", "i8", (1 << 20, 1 << 20)), "'inputs/offsets'"),
    "compressed zeros": (
        replaced("task_ids", np.zeros(1 << 22, np.int32), compression=9),
        "'task_ids' is stored with a filter .*deflate",
    ),
    "a chunk that unfolds to a gigabyte": (a_bomb, "'task_ids' is stored with a filter .*deflate"),
    "numbers that are shuffled": (
        replaced("task_ids", np.zeros(12, np.int32), shuffle=True),
        "'task_ids' is stored with a filter .*shuffle",
    ),
    "an array whose filter nobody has": (
        with_a_filter_of_number(40000),
        "'task_ids' is stored with a filter .*40000",
    ),
    "a hard link to a compressed array": (
        in_hdf5(
            lambda f: (
                f.__delitem__("task_ids"),
                f.create_dataset("x", data=np.zeros(12, np.int32), compression=1),
                f.__setitem__("task_ids", f["x"]),
            )
        ),
        "'task_ids' is stored with a filter",
    ),
    "tokens from a pipe": (
        beside_a_pipe(linked("inputs/tokens", h5py.ExternalLink("pipe.h5", "/x"))),
        "'inputs/tokens' is a link",
    ),
    "inputs from a pipe": (
        beside_a_pipe(linked("inputs", h5py.ExternalLink("pipe.h5", "/x"))),
        "'inputs/offsets' is a link",
    ),
    "many sources of variable length": (
        with_attribute("sources", np.array(["x"] * 65, object)),
        "attribute 'sources' has 65 texts of variable length",
    ),
    "a soft link to nothing": (linked("task_ids", h5py.SoftLink("/none")), "'task_ids' is "),
    "a soft link to itself": (linked("task_ids", h5py.SoftLink("/task_ids")), "'task_ids' is "),
    "an external link to nothing": (
        linked("task_ids", h5py.ExternalLink("none.h5", "/task_ids")),
        "'task_ids' is ",
    ),
    "an external link to a text": (
        linked("task_ids", h5py.ExternalLink("in.jsonl", "/task_ids")),
        "'task_ids' is ",
    ),
    "an external link to a device": (
        linked("task_ids", h5py.ExternalLink("/dev/zero", "/task_ids")),
        "'task_ids' is ",
    ),
    "an external link to another dataset": (
        linked("task_ids", h5py.ExternalLink("table.h5", "/layers")),
        "'task_ids' is ",
    ),
    "data in another file": (
        in_hdf5(
            lambda f: (
                f.__delitem__("task_ids"),
                f.create_dataset("task_ids", (12,), "i4", external=[("in.jsonl", 0, 48)]),
            )
        ),
        "'task_ids' .*not .*in the file",
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
