import json
import pickle
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
import tokenizers
from hypothesis import given
from hypothesis import strategies as st
from tokenizers.models import BPE, WordLevel
from tokenizers.pre_tokenizers import ByteLevel, Whitespace
from tokenizers.processors import TemplateProcessing

from dynapipe_hpc.data.errors import InputError
from dynapipe_hpc.data.text.tokenizer_files import read_tokenizer
from dynapipe_hpc.data.text.tokenizers import Tokenizer, encode_answer, load_tokenizer


def word_level(path: Path, *words: str) -> Path:
    model = tokenizers.Tokenizer(WordLevel({w: i for i, w in enumerate(words)}, unk_token=words[0]))
    model.pre_tokenizer = Whitespace()
    model.enable_padding(length=16)
    model.enable_truncation(2)
    model.save(str(path))
    return path


def load(path: Path | None, end_token: str | None = None, **options: Any) -> Tokenizer:
    return load_tokenizer(read_tokenizer(path), end_token, **options)


def encode(tokenizer: Tokenizer, *texts: str) -> list[list[int]]:
    return [list(tokenizer.encode(text)[0]) for text in texts]


def test_a_tokenizer_file_neither_truncates_nor_pads(tmp_path: Path) -> None:
    tokenizer = load(word_level(tmp_path / "t.json", "?", "a", "b", "</s>"))
    assert encode(tokenizer, "a b a b", "", "c") == [[1, 2, 1, 2], [], [0]]
    assert (tokenizer.vocab_size, tokenizer.eos_id) == (4, 3)


def test_the_likeliest_end_token_is_taken(tmp_path: Path) -> None:
    path = word_level(tmp_path / "t.json", "?", "[SEP]", "<|endoftext|>", "stop")
    assert load(path).eos_id == 2
    assert load(path, end_token="stop").eos_id == 3  # noqa: S106 (not a password)


PAD, EOS, BOS = 1, 2, 3


@pytest.mark.parametrize(
    ("added", "expected"),
    [
        (None, (EOS, None)),  # GPT-2
        ("<s> $A", (BOS, None)),  # Llama
        ("<s> $A </s>", (BOS, None)),
        ("</s> $A", (EOS, None)),  # OPT
        ("</s> $A </s>", (EOS, None)),
        ("$A </s>", (PAD, EOS)),  # T5
    ],
)
def test_a_tokenizer_says_what_comes_before_samples_and_after_inputs(
    tmp_path: Path, added: str | None, expected: tuple[int | None, int | None]
) -> None:
    path = word_level(tmp_path / "t.json", "?", "<pad>", "</s>", "<s>", "a")
    model = tokenizers.Tokenizer.from_file(str(path))
    if added is not None:
        tokens = [("</s>", EOS), ("<s>", BOS)]
        model.post_processor = TemplateProcessing(single=added, special_tokens=tokens)
    model.save(str(path))
    found = load(path)
    assert (found.start_id, found.input_end_id) == expected
    assert encode(found, "a", "") == [[4], []]
    named = load(path, start_token="a", input_end_token="<s>")  # noqa: S106 (tokens)
    assert (named.start_id, named.input_end_id) == (4, BOS)
    none = load(path, start_token="none", input_end_token="none")  # noqa: S106
    assert (none.start_id, none.input_end_id) == (None, None)


def test_a_start_token_that_is_not_there_is_named(tmp_path: Path) -> None:
    path = word_level(tmp_path / "t.json", "?", "</s>")
    with pytest.raises(InputError, match=r"--start <s>: t.json has no such token; for none write"):
        load(path, start_token="<s>")  # noqa: S106 (not a password)
    with pytest.raises(InputError, match="--inputs-end a: the byte tokenizer has no such token"):
        load(None, input_end_token="a")  # noqa: S106 (not a password)
    assert load(None, start_token="none").start_id is None  # noqa: S106


VOCABULARY = {**{letter: n for n, letter in enumerate("</s>abu")}, "</s>": 7, "<u>": 8}
MERGES = "#version: 0.2\n"


def special(text: str, number: int, *, is_special: bool = True) -> dict[str, object]:
    flags = ("single_word", "lstrip", "rstrip", "normalized")
    return {"id": number, "content": text, "special": is_special, **dict.fromkeys(flags, False)}


def as_one_file(folder: Path, *added: dict[str, object]) -> Path:
    model = {"type": "BPE", "vocab": VOCABULARY, "merges": []}
    content = {"version": "1.0", "added_tokens": added, "model": model}
    (folder / "tokenizer.json").write_text(json.dumps(content))
    return folder / "tokenizer.json"


FORMS: dict[str, Callable[[Path], Path]] = {
    "one file": lambda folder: as_one_file(folder, special("</s>", 7)),
    "one file, where it is an ordinary word": lambda folder: as_one_file(
        folder, special("</s>", 7, is_special=False)
    ),
    "one file, where it is a piece": as_one_file,
}


@pytest.mark.parametrize("form", FORMS)
def test_answers_make_the_end_of_text_only_if_asked(tmp_path: Path, form: str) -> None:
    path = FORMS[form](tmp_path)
    plain = [VOCABULARY[letter] for letter in "ba</s>b"]
    for tokenizer in (load(path), pickle.loads(pickle.dumps(load(path)))):  # noqa: S301
        assert encode_answer("b", "a</s>b", tokenizer) == ([*plain, 7], 1)
        assert (tokenizer.eos_id, tokenizer.special_tokens) == (7, False)
    asked = load(path, special_tokens=True)
    assert encode_answer("b", "a</s>b", asked) == ([5, 4, 7, 5, 7], 1)
    assert asked.special_tokens


def byte_level(path: Path) -> Path:
    alphabet = sorted(ByteLevel.alphabet())
    vocabulary = {letter: n for n, letter in enumerate(alphabet)} | {"</s>": len(alphabet)}
    model = tokenizers.Tokenizer(BPE(vocabulary, []))
    model.pre_tokenizer = ByteLevel(add_prefix_space=False, use_regex=False)
    model.save(str(path))
    return path


def byte_fallback(path: Path) -> Path:
    """A tokenizer of characters, whose unknown ones are bytes."""
    vocabulary = {letter: n for n, letter in enumerate("?abé")}
    vocabulary |= {f"<0x{n:02X}>": len(vocabulary) + n for n in range(256)}
    vocabulary["</s>"] = len(vocabulary)
    model = BPE(vocabulary, [], unk_token="?", byte_fallback=True)  # noqa: S106 (not a password)
    tokenizers.Tokenizer(model).save(str(path))
    return path


KINDS: dict[str, tuple[Callable[[Path], Path], Callable[[str], int]]] = {
    "bytes": (byte_level, lambda text: len(text.encode())),
    "fallback": (byte_fallback, lambda text: sum(1 if c in "abé" else 4 for c in text)),
}
"""Tokenizers, and the number of tokens that each makes of a text."""


@pytest.mark.parametrize("kind", KINDS)
@given(parts=st.lists(st.text("abé😀🐉", max_size=4), max_size=5))
def test_all_tokens_of_a_character_are_marked(
    kind: str, parts: list[str], tmp_path_factory: pytest.TempPathFactory
) -> None:
    write, n_tokens = KINDS[kind]
    tokenizer = load(write(tmp_path_factory.mktemp("t") / "t.json"))
    texts = ["".join(parts[:k]) for k in range(len(parts) + 1)]
    filled = [(one, other) for one, other in pairwise(texts) if one != other]
    spans = [(len(one), len(other)) for one, other in filled]
    ids, marked = tokenizer.encode(texts[-1], spans)
    assert len(ids) == n_tokens(texts[-1])
    assert marked == [(n_tokens(one), n_tokens(other)) for one, other in filled]


def write_tokenizer(folder: Path, *added: str) -> Path:
    folder.mkdir()
    model = WordLevel({"?": 0, "word": 1, "</s>": 2}, unk_token="?")  # noqa: S106
    tokenizer = tokenizers.Tokenizer(model)
    tokenizer.add_tokens(list(added))
    tokenizer.save(str(folder / "tokenizer.json"))
    # Without it, the class of a model may have tokens of its own.
    (folder / "tokenizer_config.json").write_text('{"tokenizer_class": "PreTrainedTokenizerFast"}')
    return folder
