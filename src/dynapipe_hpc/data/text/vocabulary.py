"""Vocabulary of a tokenizer: the token of every id, read without the library of tokenizers."""

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from dynapipe_hpc.data.input_file import json_value, read_input

BYTES_SHA256 = hashlib.sha256(b"bytes").hexdigest()
"""Hash of the tokenizer without files, whose tokens are bytes."""
MODEL_FILE, CONFIG_FILE = "tokenizer.json", "tokenizer_config.json"
_VOCABULARIES = (
    *(MODEL_FILE, "vocab.json", "tokenizer.model", "spiece.model", "sentencepiece.bpe.model"),
    *("vocab.txt", "tekken.json"),
)
_FILES = (*_VOCABULARIES, "merges.txt", CONFIG_FILE, "special_tokens_map.json", "added_tokens.json")
"""Files of a folder that decide which tokens text becomes."""


def vocabulary_sha256(ids: Mapping[str, int]) -> str:
    """SHA-256 of tokens and their ids, whatever else the files of a tokenizer say."""
    return hashlib.sha256(json.dumps(sorted(ids.items())).encode()).hexdigest()


def file_sha256(path: Path) -> str:
    """SHA-256 of the bytes of a file."""
    return hashlib.sha256(read_input(path)).hexdigest()


@dataclass(frozen=True, slots=True)
class FolderVocabulary:
    """Tokenizer in the folder of a model, as far as datasets are compared with it.

    `ids`: Ids of tokens; empty if they are not known.
    """

    name: str
    sha256: str  # SHA-256 of its files' bytes, as datasets record it
    ids: Mapping[str, int] = field(default_factory=dict)


def read_vocabulary(folder: Path) -> FolderVocabulary | None:
    """The vocabulary of the tokenizer in a folder; None if it has no file of a tokenizer."""
    name = next((name for name in _VOCABULARIES if (folder / name).exists()), None)
    if name is None:
        return None
    contents = [read_input(folder / each) for each in _FILES if (folder / each).exists()]
    sha256 = hashlib.sha256(b"".join([*contents, _class_of(folder)])).hexdigest()
    content = json_value(read_input(folder / name)) if name.endswith(".json") else None
    ids = _ids_of_tokenizer(content) if name == MODEL_FILE else _ids(content)
    return FolderVocabulary(name, sha256, ids)


def _class_of(folder: Path) -> bytes:
    """Type of the model, by which `transformers` chooses a class where none is named."""
    config, of_model = (
        json_value(read_input(path)) if (path := folder / name).exists() else None
        for name in (CONFIG_FILE, "config.json")
    )
    if (isinstance(config, dict) and "tokenizer_class" in config) or not isinstance(of_model, dict):
        return b""
    return json.dumps([of_model.get("model_type"), of_model.get("tokenizer_class")]).encode()


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
