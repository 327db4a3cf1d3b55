"""Measurements as CSV files, and lengths as JSON."""

from pathlib import Path

import pytest
from tests.bad_input.changes import NO_FILES, Change, be, be_huge
from tests.bad_input.good import PARAMETERS, PLAN_CSV, PLAN_LENGTHS, PROFILES
from tests.bad_input.worker import Worker, assert_refused

HEADER, FIRST, *_ = PROFILES.splitlines()


def with_row(row: str) -> Change:
    """Another first measurement."""
    return be(PROFILES.replace(FIRST, row))


def with_cell(column: str, value: str) -> Change:
    """Another value in the first measurement."""
    cells = dict(zip(HEADER.split(","), FIRST.split(","), strict=True)) | {column: value}
    return with_row(",".join(cells.values()))


PROFILE_CHANGES: dict[str, tuple[Change, str]] = {
    **NO_FILES,
    "empty": (be(""), "holds no measurements"),
    "terabytes": (be_huge, "larger than|not UTF-8|holds no measurements"),
    "other names": (be("a,b\n1,2\n"), "p.csv:2: no column"),
    "a cell less": (with_row(FIRST.rpartition(",")[0]), "p.csv:2: "),
    "a long cell": (with_cell("layer", "x" * 200_000), "not a CSV file"),
    "an unknown layer": (with_cell("layer", "middle"), "p.csv:2: .*'middle'"),
    "a decoder": (with_cell("layer", "decoder"), "measurements of a t5"),
    "an unknown mode": (with_cell("recompute", "some"), "'some'|no weights of"),
    "rows of thousands of digits": (with_cell("microbatch_size", "9" * 5000), "p.csv:2: "),
    "a time in words": (with_cell("forward_ms", "fast"), "p.csv:2: .*'fast'"),
    "an escape sequence": (with_cell("layer", "\x1b[2J"), r"p.csv:2: .*x1b"),
}
PARAMETER_CHANGES: dict[str, tuple[Change, str]] = {
    **NO_FILES,
    "without the embedding": (be(PARAMETERS.rsplit("\n", 2)[0]), "no weights of .*embedding"),
    "weights in words": (be(PARAMETERS.replace(",4\n", ",four\n")), "p_parameters.csv:2: .*'four'"),
    "weights below 0": (
        be(PARAMETERS.replace(",4\n", ",-4\n")),
        "parameter_bytes.* -4|parameter_mb",
    ),
    "the measurements": (be(PROFILES), "no column 'parameter_mb'"),
}


@pytest.mark.parametrize("name", PROFILE_CHANGES)
def test_a_bad_profile_is_named(worker: Worker, folder: Path, name: str) -> None:
    change, words = PROFILE_CHANGES[name]
    change(folder / "p.csv")
    assert_refused(
        worker, folder, PLAN_CSV, rf"^dynapipe-hpc: p(_parameters)?\.csv(?s:.*)({words})|({words})"
    )


@pytest.mark.parametrize("name", PARAMETER_CHANGES)
def test_bad_sizes_of_weights_are_named(worker: Worker, folder: Path, name: str) -> None:
    change, words = PARAMETER_CHANGES[name]
    change(folder / "p_parameters.csv")
    assert_refused(worker, folder, PLAN_CSV, words)


LENGTHS: dict[str, tuple[Change, str]] = {
    **NO_FILES,
    "empty": (be(""), "content: Invalid JSON"),
    "terabytes": (be_huge, "larger than"),
    "a deep list": (be("[" * 100_000), "Invalid JSON"),
    "no batches": (be("{}"), "batches: Field required"),
    "an empty batch": (be('{"batches": [[8], []]}'), "batches, batch 1: .*at least 1"),
    "a length of 0": (be('{"batches": [[8, 0]]}'), "batches, batch 0, sample 1: 0: "),
    "too long for the model": (be('{"batches": [[65]]}'), "batch 0: sample 0 .*model.max_tokens"),
    "targets of fewer samples": (
        be('{"batches": [[8, 8]], "dec_batches": [[8]]}'),
        "batches has .2. inputs, but dec_batches has .1. targets",
    ),
}


@pytest.mark.parametrize("name", LENGTHS)
def test_bad_lengths_are_named(worker: Worker, folder: Path, name: str) -> None:
    change, words = LENGTHS[name]
    change(folder / "lengths.json")
    assert_refused(
        worker, folder, PLAN_LENGTHS, rf"^dynapipe-hpc: lengths\.json: (?s:.*)({words})|{words}"
    )


@pytest.mark.parametrize(
    ("setting", "words"),
    [
        ("cluster.device_memory_bytes=20000", "batch 0: .*memory"),
        ("cluster.n_replicas=2", "batch 1: an iteration has 1 micro-batches for 2 "),
    ],
)
def test_a_batch_that_cannot_be_planned_is_named(
    worker: Worker, folder: Path, setting: str, words: str
) -> None:
    assert_refused(worker, folder, (*PLAN_LENGTHS, "--set", setting), f"lengths.json: {words}")
