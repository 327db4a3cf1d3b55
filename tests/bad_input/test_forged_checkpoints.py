"""Checkpoints whose checksums are right, and which say what no run would have written."""

import hashlib
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tests.bad_input.good import GO_ON
from tests.bad_input.oracle import assert_refused
from tests.bad_input.worker import Worker

ONLY = Path("trained", "checkpoints", "000003")
Fields = dict[str, Any]
Forgery = Callable[[Fields], object]


def signed(fields: Fields) -> Fields:
    """With its checksum, as docs/formats.md says."""
    text = json.dumps(fields, sort_keys=True, separators=(",", ":"))
    return {**fields, "checksum": hashlib.blake2b(text.encode(), digest_size=8).hexdigest()}


def rewrite(path: Path, change: Forgery) -> str:
    fields = json.loads(path.read_text())
    del fields["checksum"]
    change(fields)
    forged = signed(fields)
    path.write_text(json.dumps(forged))
    return str(forged["checksum"])


def forge_part(folder: Path, change: Forgery) -> None:
    checksum = rewrite(folder / "part-00000.json", change)
    rewrite(folder / "checkpoint.json", lambda fields: fields.update(part_checksums=[checksum]))


def first(fields: Fields) -> Fields:
    found: Fields = next(iter(fields["tensors"].values()))
    return found


def of_first(**values: Any) -> Forgery:
    return lambda fields: first(fields).update(values)


def block(place: int, value: Any) -> Forgery:
    """Another first index, sizes or start of the first block."""
    return lambda fields: first(fields)["blocks"][0].__setitem__(place, value)


def overlap(fields: Fields) -> None:
    """Two blocks of a tensor of two blocks are the same half; the other half is missing."""
    tensor = next(t for t in fields["tensors"].values() if len(t["shape"]) == 2)
    [[offsets, sizes, start]] = tensor["blocks"]
    half = [sizes[0] // 2, sizes[1]]
    n_bytes = half[0] * half[1] * 4
    tensor["blocks"] = [[offsets, half, start], [[1, 0], half, start + n_bytes]]


def same_bytes(fields: Fields) -> None:
    """Two tensors of one size share their numbers, and the last one's are nobody's."""
    by_size: dict[str, Fields] = {}
    for tensor in fields["tensors"].values():
        other = by_size.setdefault(json.dumps(tensor["shape"]), tensor)
        if other is not tensor:
            other["blocks"] = tensor["blocks"]
            return


PARTS: dict[str, tuple[Forgery, str]] = {
    "a function for a type": (of_first(dtype="load"), "dtype is 'load'"),
    "a type of integers": (of_first(dtype="int64"), "dtype is 'int64'"),
    "no type": (lambda f: first(f).pop("dtype"), "'dtype'"),
    "a shape of a number": (of_first(shape=7), "shape is 7"),
    "a shape below zero": (of_first(shape=[-1, 8]), "shape is .-1"),
    "a shape beyond all memory": (of_first(shape=[2**70, 8]), "shape is .1180591620717411303424"),
    "blocks of a number": (of_first(blocks=7), "blocks is 7"),
    "a block of two values": (of_first(blocks=[[[0], [1]]]), "block "),
    "a start below zero": (block(2, -8), "block .*start"),
    "a start behind the end": (block(2, 2**40), "starts? at"),
    "an index below zero": (block(0, [-1, 0]), "block "),
    "an index behind the end": (block(0, [10**6, 0]), "block "),
    "sizes below zero": (block(1, [-1, -8]), "block "),
    "sizes beyond the shape": (block(1, [10**6, 8]), "block "),
    "blocks that overlap": (overlap, "blocks of weight/.* overlap"),
    "tensors that share numbers": (same_bytes, "starts? at"),
    "tensors in a list": (lambda f: f.update(tensors=[1]), "tensors is "),
    "no tensors": (lambda f: f.pop("tensors"), "'tensors'"),
    "a checksum of a number": (lambda f: f.update(data_checksum=7), "its checksum differs"),
    "no checksum of the numbers": (lambda f: f.pop("data_checksum"), "data_checksum"),
}


@pytest.mark.parametrize("name", PARTS)
def test_a_forged_part_is_refused(worker: Worker, trained: Path, name: str) -> None:
    change, words = PARTS[name]
    forge_part(trained / ONLY, change)
    words = rf"all checkpoints are damaged \(1\), for example {ONLY}(?s:.*)({words})"
    assert_refused(worker, trained, GO_ON, words)


DESCRIPTIONS: dict[str, tuple[Forgery, str]] = {
    "iterations in words": (lambda f: f.update(n_done="three"), "n_done is 'three'"),
    "iterations below zero": (lambda f: f.update(n_done=-1), "n_done is -1"),
    "counters in a list": (lambda f: f.update(counters=[1, 2]), "counters is "),
    "a counter in words": (lambda f: f["counters"].update(n_steps="x"), "n_steps is 'x'"),
    "an unknown counter": (lambda f: f["counters"].update(x=1), "x"),
    "a missing counter": (lambda f: f["counters"].pop("n_steps"), "n_steps"),
    "a loss scale of nothing": (lambda f: f["counters"].update(loss_scale=0), "loss_scale is 0"),
    "checksums of numbers": (lambda f: f.update(part_checksums=[7]), "part_checksums is .7"),
    "no part": (lambda f: f.update(part_checksums=[]), "part_checksums is "),
}


@pytest.mark.parametrize("name", DESCRIPTIONS)
def test_a_forged_description_is_refused(worker: Worker, trained: Path, name: str) -> None:
    change, words = DESCRIPTIONS[name]
    rewrite(trained / ONLY / "checkpoint.json", change)
    words = rf"all checkpoints are damaged \(1\), for example {ONLY}/checkpoint.json: .*({words})"
    assert_refused(worker, trained, GO_ON, words)


def forget_the_choice(fields: Fields) -> None:
    """As checkpoints were before there was a choice."""
    fields["facts"].pop("data.long_samples", None)


@pytest.mark.parametrize("choice", ["cut_input_start", "drop", "refuse"])
def test_what_no_sample_is_too_long_for_may_change(
    worker: Worker, trained: Path, choice: str
) -> None:
    rewrite(trained / ONLY / "checkpoint.json", forget_the_choice)
    ended = worker.call(trained, (*GO_ON, "--set", f"data.long_samples={choice}"))
    assert ended.exit_code == 0, ended.stderr
    assert "trained: continues after 3 iterations" in ended.stdout
