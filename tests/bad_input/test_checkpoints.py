"""Checkpoints to go on from, damaged or none."""

import json
import random
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
from tests.bad_input.changes import NO_FILES, Change, be, be_huge, cut, flip, scramble
from tests.bad_input.good import GO_ON, TRAIN
from tests.bad_input.worker import Worker, assert_refused, assert_refused_or_done

ONLY = Path("trained", "checkpoints", "000003")
DESCRIPTION, INDEX, NUMBERS = "checkpoint.json", "part-00000.json", "part-00000.bin"
FILES = (DESCRIPTION, INDEX, NUMBERS)


def in_json(change: Callable[[dict[str, object]], object]) -> Change:
    """Changes an object, and leaves its checksum."""

    def change_file(path: Path) -> None:
        fields = json.loads(path.read_text())
        change(fields)
        path.write_text(json.dumps(fields))

    return change_file


def longer(path: Path) -> None:
    with path.open("ab") as file:
        file.write(bytes(4))


def shorter(path: Path) -> None:
    cut(path, 0.99)


def changed_at(share: float) -> Change:
    """Another bit at some place."""

    def change(path: Path) -> None:
        data = bytearray(path.read_bytes())
        data[int(share * len(data))] ^= 1
        path.write_bytes(data)

    return change


CHANGES: list[tuple[str, Change, str]] = [
    *((name, change, words) for name in FILES for change, words in NO_FILES.values()),
    *((name, be(""), "is damaged: ") for name in FILES),
    *((name, be(bytes(1000)), "is damaged: ") for name in FILES),
    *((name, shorter, "is damaged: ") for name in FILES),
    *((name, be_huge, "is larger than|is damaged: holds 1,099,511,627,776 of") for name in FILES),
    *((name, changed_at(share), "is damaged: ") for name in FILES for share in (0, 0.5)),
    (NUMBERS, longer, r"part-00000.bin: is damaged: holds [\d,]+ of [\d,]+ bytes"),
    *((name, be("[" * 50_000), "is damaged: ") for name in (DESCRIPTION, INDEX)),
    *((name, be(b"\xff"), "is damaged: ") for name in (DESCRIPTION, INDEX)),
    *((name, be("[1]"), "is damaged: ") for name in (DESCRIPTION, INDEX)),
    *((name, be("{}"), "is damaged: 'checksum'") for name in (DESCRIPTION, INDEX)),
    (DESCRIPTION, in_json(lambda f: f.update(n_done=2)), "its checksum differs"),
    (DESCRIPTION, in_json(lambda f: f.update(schema_version=3)), "its checksum differs"),
    (DESCRIPTION, in_json(lambda f: f.pop("counters")), "its checksum differs"),
    (DESCRIPTION, in_json(lambda f: f.update(checksum=7)), "its checksum differs"),
    (INDEX, in_json(lambda f: f.update(tensors={})), "its checksum differs"),
    (INDEX, in_json(lambda f: f.pop("data_checksum")), "its checksum differs"),
]


@pytest.mark.parametrize(("name", "change", "words"), CHANGES)
def test_the_only_checkpoint_is_named_and_left_as_it_is(
    worker: Worker, trained: Path, name: str, change: Change, words: str
) -> None:
    change(trained / ONLY / name)
    words = rf"all checkpoints are damaged \(1\), for example {ONLY}/.*({words})"
    assert_refused(worker, trained, GO_ON, words)


def test_a_part_of_another_run_is_named(worker: Worker, trained: Path) -> None:
    other = (*TRAIN, "-o", "other", "--set", "training.seed=1")
    assert worker.call(trained, other).exit_code == 0
    for name in (INDEX, NUMBERS):
        shutil.copy(trained / "other" / ONLY.relative_to("trained") / name, trained / ONLY)
    assert_refused(worker, trained, GO_ON, f"{INDEX}: belongs to another checkpoint")


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("checkpoints", "trained/checkpoints: cannot be read: Not a directory; make it a"),
        ("checkpoints/000003", r"all checkpoints are damaged \(1\), for example .*Not a directory"),
    ],
)
def test_what_is_no_folder_is_named(worker: Worker, trained: Path, name: str, words: str) -> None:
    path = trained / "trained" / name
    shutil.rmtree(path)
    path.write_text("")
    assert_refused(worker, trained, GO_ON, words)


SETTINGS = {
    "training.seed=1": "was written with training.seed = 0, but now it is 1; restore the old value",
    "training.dtype='float64'": "training.dtype = 'float32', but now it is 'float64'",
    "data.seed=1": "was written with data.seed = 0",
    "model.ffn_size=64": "was written with model.ffn_size = 32",
}


@pytest.mark.parametrize("setting", SETTINGS)
def test_another_experiment_is_named(worker: Worker, trained: Path, setting: str) -> None:
    assert_refused(worker, trained, (*GO_ON, "--set", setting), SETTINGS[setting])


SEEDS = [*range(3), *(pytest.param(seed, marks=pytest.mark.exhaustive) for seed in range(3, 30))]


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("name", FILES)
def test_a_random_change_is_refused_or_harmless(
    worker: Worker, trained: Path, name: str, seed: int
) -> None:
    draw, path = random.Random(seed), trained / ONLY / name  # noqa: S311
    before = path.read_bytes()
    (flip if name == NUMBERS else scramble)(path, draw)
    changed = path.read_bytes()
    assert assert_refused_or_done(worker, trained, GO_ON) or same_object(changed, before)


def same_object(found: bytes, expected: bytes) -> bool:
    """Blanks may differ."""
    return found == expected or bool(json.loads(found) == json.loads(expected))
