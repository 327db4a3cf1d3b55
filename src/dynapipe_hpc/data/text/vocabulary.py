"""Vocabulary of a tokenizer: the token of every id, read without the library of tokenizers."""

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from dynapipe_hpc.data.input_file import read_input

BYTES_SHA256 = hashlib.sha256(b"bytes").hexdigest()
"""Hash of the tokenizer without files, whose tokens are bytes."""
_OTHER_FILES = ("tokenizer.model", "spiece.model", "vocab.txt")


def vocabulary_sha256(ids: Mapping[str, int]) -> str:
    """SHA-256 of tokens and their ids, whatever else the files of a tokenizer say."""
    return hashlib.sha256(json.dumps(sorted(ids.items())).encode()).hexdigest()


@dataclass(frozen=True, slots=True)
class FolderVocabulary:
    """Tokenizer in the folder of a model, as far as datasets are compared with it.

    Attributes:
        name: Name of its files; those of a kind that is not compared have no hash.
        sha256: SHA-256 of the files' bytes, as datasets record it; empty if it is not known.
        ids: Ids of tokens; empty if they are not known.
    """

    name: str
    sha256: str = ""
    ids: Mapping[str, int] = field(default_factory=dict)


def read_vocabulary(folder: Path) -> FolderVocabulary | None:
    """The vocabulary of the tokenizer in a folder; None if it has no file of a tokenizer."""
    single, vocabulary, merges = (
        folder / name for name in ("tokenizer.json", "vocab.json", "merges.txt")
    )
    if single.exists():
        content = read_input(single)
        return FolderVocabulary(single.name, _sha256(content), _ids_of_tokenizer(_json(content)))
    if vocabulary.exists() and merges.exists():
        content = read_input(vocabulary)
        sha256 = _sha256(content + read_input(merges))
        return FolderVocabulary(f"{vocabulary.name} {merges.name}", sha256, _ids(_json(content)))
    for name in _OTHER_FILES:
        if (folder / name).exists():
            return FolderVocabulary(name)
    return None


def _sha256(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()


def _json(content: bytes) -> Any:
    try:
        return json.loads(content)
    except (ValueError, RecursionError):
        return None  # of a tokenizer of another kind, with which no dataset was made


def _ids_of_tokenizer(content: Any) -> dict[str, int]:
    model = content.get("model") if isinstance(content, dict) else None
    tokens = model.get("vocab") if isinstance(model, dict) else None
    if isinstance(tokens, list):  # of a Unigram model, with scores
        tokens = {each[0]: i for i, each in enumerate(tokens) if isinstance(each, list) and each}
    added = content.get("added_tokens") if isinstance(content, dict) else None
    ids = _ids(tokens)
    for each in added if isinstance(added, list) else ():
        if isinstance(each, dict):
            ids |= _ids({each.get("content"): each.get("id")})
    return ids


def _ids(tokens: Any) -> dict[str, int]:
    if not isinstance(tokens, dict):
        return {}
    return {t: i for t, i in tokens.items() if isinstance(t, str) and type(i) is int}
