"""Good inputs go through, and random changes of them are refused or harmless. Seeded."""

import random
import zlib
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest
from tests.bad_input import good
from tests.bad_input.changes import cut, flip, scramble
from tests.bad_input.good import (
    INSPECT_DATASET,
    INSPECT_TABLE,
    PLAN,
    PLAN_CSV,
    PLAN_LENGTHS,
    PLAN_PROFILED,
    PREPROCESS,
    REPORT,
    WITH_TOKENIZER,
)
from tests.bad_input.worker import Worker, assert_refused_or_done

Random = Callable[[Path, random.Random], None]
SEEDS = [*range(3), *(pytest.param(seed, marks=pytest.mark.exhaustive) for seed in range(3, 60))]


def flip_some(path: Path, draw: random.Random) -> None:
    """Of most of the bits HDF5 knows by itself that they changed, not of values."""
    flip(path, draw, n_bits=draw.choice((1, 1, 2, 16)))


def cut_or_flip(path: Path, draw: random.Random) -> None:
    flip_some(path, draw)
    if draw.random() < 0.3:
        cut(path, draw.random())


KINDS: dict[str, tuple[str, Random, Sequence[str]]] = {
    "text": ("in.jsonl", scramble, PREPROCESS),
    "configuration": ("config.toml", scramble, PLAN),
    "lengths": ("lengths.json", scramble, PLAN_LENGTHS),
    "tokenizer": ("tokenizer.json", scramble, WITH_TOKENIZER),
    "measurements": ("p.csv", scramble, PLAN_CSV),
    "sizes of weights": ("p_parameters.csv", scramble, PLAN_CSV),
    "dataset": ("data.h5", cut_or_flip, PLAN),
    "inspected dataset": ("data.h5", cut_or_flip, INSPECT_DATASET),
    "cost table": ("table.h5", cut_or_flip, PLAN_PROFILED),
    "inspected cost table": ("table.h5", cut_or_flip, INSPECT_TABLE),
    "iterations": ("run/iterations.jsonl", scramble, REPORT),
    "machine": ("run/machine.json", scramble, REPORT),
    "timelines": ("run/timelines.jsonl", scramble, REPORT),
}


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("kind", KINDS)
def test_a_random_change_is_refused_or_harmless(
    worker: Worker, folder: Path, kind: str, seed: int
) -> None:
    name, change, arguments = KINDS[kind]
    change(folder / name, random.Random(zlib.crc32(kind.encode()) + seed))  # noqa: S311
    assert_refused_or_done(worker, folder, arguments)


COMMANDS = {
    name: value for name, value in vars(good).items() if name.isupper() and type(value) is tuple
}


@pytest.mark.parametrize("arguments", COMMANDS.values(), ids=COMMANDS)
def test_good_input_goes_through(worker: Worker, folder: Path, arguments: Sequence[str]) -> None:
    ended = worker.call(folder, arguments)
    assert (ended.exit_code, ended.stderr) == (0, "")
