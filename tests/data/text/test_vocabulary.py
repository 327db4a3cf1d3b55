"""The vocabulary in a folder, read without the library of tokenizers, which is its oracle."""

from pathlib import Path

import pytest
import tokenizers
from tokenizers.models import BPE, Unigram, WordLevel

from dynapipe_hpc.data.text.tokenizer_files import read_tokenizer
from dynapipe_hpc.data.text.tokenizers import load_tokenizer
from dynapipe_hpc.data.text.vocabulary import read_vocabulary, vocabulary_sha256

MODELS = {
    "BPE": BPE({"a": 0, "b": 1, "ab": 2, "</s>": 3}, [("a", "b")]),
    "Unigram": Unigram([("<unk>", 0.0), ("a", -1.0), ("ä", -2.0), ("</s>", -3.0)], unk_id=0),
    "WordLevel": WordLevel({"word": 1, "</s>": 2, "?": 0}, unk_token="?"),  # noqa: S106
}


def write_tokenizer(folder: Path, kind: str, *added: str) -> Path:
    """Writes a tokenizer into a folder, which is made."""
    folder.mkdir()
    model = tokenizers.Tokenizer(MODELS[kind])
    model.add_special_tokens(["</s>"])
    model.add_tokens(list(added))
    model.save(str(folder / "tokenizer.json"))
    # Without it, the class of a model may have tokens of its own.
    (folder / "tokenizer_config.json").write_text('{"tokenizer_class": "PreTrainedTokenizerFast"}')
    return folder


@pytest.mark.parametrize("kind", MODELS)
def test_tokens_are_those_that_datasets_are_made_of(kind: str, tmp_path: Path) -> None:
    folder = write_tokenizer(tmp_path / "model", kind, "<|new|>")
    found, tokenizer = read_vocabulary(folder), load_tokenizer(read_tokenizer([folder]))
    assert found is not None
    assert found.ids["<|new|>"] == tokenizer.vocab_size - 1
    assert found.sha256 == tokenizer.sha256
    assert vocabulary_sha256(found.ids) == tokenizer.vocabulary_sha256


def test_a_folder_without_one_has_none(tmp_path: Path) -> None:
    assert read_vocabulary(tmp_path) is None
    (tmp_path / "spiece.model").write_bytes(b"\n")
    found = read_vocabulary(tmp_path)
    assert found is not None
    assert (found.name, found.ids) == ("spiece.model", {})


@pytest.mark.parametrize("text", ["[]", "{", '{"model": {"vocab": 3}}', '{"added_tokens": [1]}'])
def test_a_file_of_another_kind_has_no_tokens(text: str, tmp_path: Path) -> None:
    (tmp_path / "tokenizer.json").write_text(text)
    found = read_vocabulary(tmp_path)
    assert found is not None
    assert not found.ids
