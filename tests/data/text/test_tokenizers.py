"""From text to token ids."""

import json
import pickle
from collections.abc import Callable
from pathlib import Path

import pytest
import tokenizers
from hypothesis import given
from hypothesis import strategies as st
from tests.jobs.shared_folder import shared_folder
from tokenizers.models import BPE, WordLevel
from tokenizers.pre_tokenizers import Whitespace

from dynapipe_hpc.data.errors import InputError
from dynapipe_hpc.data.text.tokenizers import ByteTokenizer, Tokenizer, load_tokenizer


def word_level(path: Path, *words: str) -> Path:
    model = tokenizers.Tokenizer(WordLevel({w: i for i, w in enumerate(words)}, unk_token=words[0]))
    model.pre_tokenizer = Whitespace()
    model.enable_padding(length=16)
    model.enable_truncation(2)
    model.save(str(path))
    return path


def encode(tokenizer: Tokenizer, *texts: str) -> list[list[int]]:
    return [list(tokens) for tokens in tokenizer.encode(texts)]


@given(st.text())
def test_bytes_are_tokens(text: str) -> None:
    [tokens] = encode(ByteTokenizer(), text)
    assert bytes(tokens).decode() == text


def test_the_byte_tokenizer_needs_no_file() -> None:
    tokenizer = load_tokenizer([])
    assert (tokenizer.vocab_size, tokenizer.eos_id) == (257, 256)


def test_a_tokenizer_file_neither_truncates_nor_pads(tmp_path: Path) -> None:
    tokenizer = load_tokenizer([word_level(tmp_path / "t.json", "?", "a", "b", "</s>")])
    assert encode(tokenizer, "a b a b", "", "c") == [[1, 2, 1, 2], [], [0]]
    assert (tokenizer.vocab_size, tokenizer.eos_id) == (4, 3)


def test_the_likeliest_end_token_is_taken(tmp_path: Path) -> None:
    path = word_level(tmp_path / "t.json", "?", "[SEP]", "<|endoftext|>", "stop")
    assert load_tokenizer([path]).eos_id == 2
    assert load_tokenizer([path], end_token="stop").eos_id == 3  # noqa: S106 (not a password)


def test_added_tokens_count(tmp_path: Path) -> None:
    path = word_level(tmp_path / "t.json", "?", "a")
    model = tokenizers.Tokenizer.from_file(str(path))
    model.add_special_tokens(["</s>"])
    model.save(str(path))
    tokenizer = load_tokenizer([path])
    assert (tokenizer.vocab_size, tokenizer.eos_id) == (3, 2)


def test_a_tokenizer_can_be_sent_to_another_process(tmp_path: Path) -> None:
    tokenizer = load_tokenizer([word_level(tmp_path / "t.json", "?", "a", "b", "</s>")])
    sent = pickle.loads(pickle.dumps(tokenizer))  # noqa: S301 (our own bytes)
    assert encode(sent, "a b a b") == encode(tokenizer, "a b a b")


def test_the_hash_follows_the_files(tmp_path: Path) -> None:
    one = load_tokenizer([word_level(tmp_path / "1.json", "?", "a", "</s>")])
    same = load_tokenizer([word_level(tmp_path / "2.json", "?", "a", "</s>")])
    other = load_tokenizer([word_level(tmp_path / "3.json", "a", "?", "</s>")])
    assert one.sha256 == same.sha256 != other.sha256


def byte_level_pair(folder: Path) -> list[Path]:
    vocabulary = {c: i for i, c in enumerate("abĠ")} | {"ab": 3, "<|endoftext|>": 4}
    (folder / "vocab.json").write_text(json.dumps(vocabulary))
    (folder / "merges.txt").write_text("#version: 0.2\na b\n")
    return [folder / "vocab.json", folder / "merges.txt"]


def test_a_vocabulary_and_its_merges_are_a_tokenizer(tmp_path: Path) -> None:
    tokenizer = load_tokenizer(byte_level_pair(tmp_path))
    assert encode(tokenizer, "ab ba") == [[3, 2, 1, 0]]
    assert (tokenizer.name, tokenizer.vocab_size) == ("vocab.json merges.txt", 5)


def test_gpt2_splits_as_it_is_known_to() -> None:
    names = ("gpt2-vocab.json", "gpt2-merges.txt")
    folder = shared_folder("tokenizers")
    tokenizer = load_tokenizer([folder / name for name in names])
    assert encode(tokenizer, "Hello world") == [[15496, 995]]
    assert (tokenizer.vocab_size, tokenizer.eos_id) == (50257, 50256)


def test_a_missing_tokenizer_is_named(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"t.json: cannot be read: No such file"):
        load_tokenizer([tmp_path / "t.json"])


def test_a_vocabulary_alone_is_not_enough(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"has no 'model'; .* merges.txt too: --tokenizer VOCAB"):
        load_tokenizer(byte_level_pair(tmp_path)[:1])


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("", "not a tokenizer file, which is JSON"),
        ("[1, 2]", "has no 'model'"),
        ("17", "has no 'model'"),
        ('{"model": {"type": "Oracle"}}', "cannot be loaded as a tokenizer"),
    ],
)
def test_another_file_is_no_tokenizer(tmp_path: Path, content: str, message: str) -> None:
    (tmp_path / "t.json").write_text(content)
    with pytest.raises(InputError, match=rf"t\.json: .*{message}"):
        load_tokenizer([tmp_path / "t.json"])


def test_the_order_of_vocabulary_and_merges_matters(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"not the vocabulary and the merges .*in this order"):
        load_tokenizer(byte_level_pair(tmp_path)[::-1])


def test_three_files_are_too_many(tmp_path: Path) -> None:
    [vocabulary, merges] = byte_level_pair(tmp_path)
    with pytest.raises(InputError, match="takes one file or two, got 3"):
        load_tokenizer([vocabulary, merges, merges])


def test_a_vocabulary_without_an_end_shows_the_way_out(tmp_path: Path) -> None:
    path = word_level(tmp_path / "t.json", "?", "a")
    with pytest.raises(InputError, match=r"none of its tokens is known to end.*: --eos TOKEN"):
        load_tokenizer([path])
    with pytest.raises(InputError, match=r"--eos zz: t.json has no such token"):
        load_tokenizer([path], end_token="zz")  # noqa: S106 (not a password)


def test_bytes_have_their_own_end() -> None:
    with pytest.raises(InputError, match="--eos x: the byte tokenizer has an end token of its own"):
        load_tokenizer([], end_token="x")  # noqa: S106 (not a password)


def test_an_empty_vocabulary_has_no_end(tmp_path: Path) -> None:
    tokenizers.Tokenizer(BPE()).save(str(tmp_path / "t.json"))
    with pytest.raises(InputError, match="none of its tokens is known to end a sequence"):
        load_tokenizer([tmp_path / "t.json"])


VOCABULARY = {**{letter: n for n, letter in enumerate("</s>abu")}, "</s>": 7, "<u>": 8}
MERGES = "#version: 0.2\n"


def special(text: str, number: int, *, is_special: bool = True) -> dict[str, object]:
    flags = ("single_word", "lstrip", "rstrip", "normalized")
    return {"id": number, "content": text, "special": is_special, **dict.fromkeys(flags, False)}


def as_one_file(folder: Path, *added: dict[str, object]) -> list[Path]:
    model = {"type": "BPE", "vocab": VOCABULARY, "merges": []}
    content = {"version": "1.0", "added_tokens": added, "model": model}
    (folder / "tokenizer.json").write_text(json.dumps(content))
    return [folder / "tokenizer.json"]


def as_two_files(folder: Path) -> list[Path]:
    (folder / "vocab.json").write_text(json.dumps(VOCABULARY))
    (folder / "merges.txt").write_text(MERGES)
    return [folder / "vocab.json", folder / "merges.txt"]


FORMS: dict[str, Callable[[Path], list[Path]]] = {
    "one file": lambda folder: as_one_file(folder, special("</s>", 7)),
    "one file, where it is an ordinary word": lambda folder: as_one_file(
        folder, special("</s>", 7, is_special=False)
    ),
    "one file, where it is a piece": as_one_file,
    "two files": as_two_files,
}


@pytest.mark.parametrize("form", FORMS)
def test_text_makes_the_end_of_text_only_if_asked(tmp_path: Path, form: str) -> None:
    paths = FORMS[form](tmp_path)
    plain = [VOCABULARY[letter] for letter in "a</s>b"]
    for tokenizer in (load_tokenizer(paths), pickle.loads(pickle.dumps(load_tokenizer(paths)))):  # noqa: S301
        assert tokenizer.encode(["a</s>b"]) == [plain]
        assert (tokenizer.eos_id, tokenizer.special_tokens) == (7, False)
    asked = load_tokenizer(paths, special_tokens=True)
    assert asked.encode(["a</s>b"]) == [[VOCABULARY["a"], 7, VOCABULARY["b"]]]
    assert asked.special_tokens


def test_text_makes_no_other_special_token_either(tmp_path: Path) -> None:
    paths = as_one_file(tmp_path, special("</s>", 7), special("<u>", 8))
    assert load_tokenizer(paths).encode(["<u>"]) == [[VOCABULARY[letter] for letter in "<u>"]]
    assert load_tokenizer(paths, special_tokens=True).encode(["<u>"]) == [[8]]
