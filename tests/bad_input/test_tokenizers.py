import json
from pathlib import Path
from typing import Any

import pytest
from tests.bad_input.changes import NO_FILES, Change, be, be_huge
from tests.bad_input.good import PREPROCESS, TOKENIZER, VOCABULARY, WITH_TOKENIZER
from tests.bad_input.worker import Worker, assert_refused, listing

PANICS = {"type": "Split", "pattern": {"Regex": "(a+)+$"}, "behavior": "Isolated", "invert": False}


def with_entries(**changes: Any) -> Change:
    """A tokenizer file with other entries."""
    return be(json.dumps(TOKENIZER | changes))


def of_model(**changes: Any) -> Change:
    """With other entries of its model."""
    model = {"type": "BPE", "vocab": VOCABULARY, "merges": ["a b"]} | changes
    return with_entries(model=model)


FILES: dict[str, tuple[Change, str]] = {
    **NO_FILES,
    "empty": (be(""), "not a tokenizer file, which is JSON"),
    "a pointer": (be("version https://git-lfs.github.com/spec/v1\noid x\n"), "git lfs pull"),
    "terabytes": (be_huge, "larger than"),
    "a deep list": (be("[" * 100_000), "not a tokenizer file, which is JSON"),
    "a vocabulary": (
        be(json.dumps(VOCABULARY)),
        "not a tokenizer file, it has no 'model'.*folder of its",
    ),
    "an empty model": (with_entries(model={}), "cannot be loaded"),
    "another version": (with_entries(version="99.0"), "cannot be loaded"),
    "an empty vocabulary": (of_model(vocab={}, merges=[]), "end a sequence|no token"),
    "no end of a sequence": (of_model(vocab={"a": 0, "b": 1, "ab": 2}), "known to end a sequence"),
    "a pattern that is none": (
        with_entries(pre_tokenizer={**PANICS, "pattern": {"Regex": "("}}),
        "cannot be loaded",
    ),
    "an unknown token that is unknown": (of_model(unk_token="<unk>"), "cannot make tokens"),  # noqa: S106
    "a long message": (of_model(type="x" * 10**6), "cannot be loaded"),
}


@pytest.mark.parametrize("name", FILES)
def test_a_bad_tokenizer_is_named(worker: Worker, folder: Path, name: str) -> None:
    change, words = FILES[name]
    change(folder / "tokenizer.json")
    # With a letter that the vocabulary lacks.
    (folder / "in.jsonl").write_text('{"inputs": "abc", "targets": "b"}\n')
    assert_refused(
        worker,
        folder,
        WITH_TOKENIZER,
        rf"^dynapipe-hpc: tokenizer\.json: (?s:.*)({words})|tokenizer.json.*{words}",
    )


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ((*WITH_TOKENIZER, "--eos", "<end>"), "--eos <end>: tokenizer.json has no such token"),
        ((*WITH_TOKENIZER, "--eos", ""), "--eos"),
        ((*PREPROCESS, "--eos", "</s>"), "--eos </s>: the byte tokenizer has"),
    ],
)
def test_a_bad_choice_of_tokenizer_is_explained(
    worker: Worker, folder: Path, arguments: tuple[str, ...], words: str
) -> None:
    assert_refused(worker, folder, arguments, words)


@pytest.mark.parametrize("n_workers", ["1", "2"])
def test_a_tokenizer_that_panics_is_named(worker: Worker, folder: Path, n_workers: str) -> None:
    with_entries(pre_tokenizer=PANICS)(folder / "tokenizer.json")
    text = {"inputs": "a" * 40 + "b", "targets": "b"}
    (folder / "in.jsonl").write_text(json.dumps(text) + "\n")
    before = listing(folder)
    ended = worker.call(folder, (*WITH_TOKENIZER, "--workers", n_workers))
    # The library prints something of its own, from whichever process it panicked in.
    said = [line for line in ended.stderr.splitlines() if line.startswith("dynapipe-hpc: ")]
    assert ended.exit_code == 2
    assert [line.partition("text: ")[0] for line in said] == [
        "dynapipe-hpc: in.jsonl:1: tokenizer.json: cannot make tokens of the "
    ]
    assert "Traceback" not in ended.stderr
    assert listing(folder) == before
