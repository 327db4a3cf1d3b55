"""Hashes of tokenizers; hashing a file needs no tokenizer library."""

import hashlib
import json
from collections.abc import Mapping
from pathlib import Path

from dynapipe_hpc.data.input_file import json_value, read_input

BYTES_SHA256 = hashlib.sha256(b"bytes").hexdigest()
"""Hash of the tokenizer without files, whose tokens are bytes."""
MODEL_FILE, CONFIG_FILE = "tokenizer.json", "tokenizer_config.json"
_VOCABULARIES = (
    *(MODEL_FILE, "vocab.json", "tokenizer.model", "spiece.model"),
    *("sentencepiece.bpe.model", "vocab.txt", "tekken.json"),
)
_FILES = (*_VOCABULARIES, "merges.txt", CONFIG_FILE, "special_tokens_map.json", "added_tokens.json")
"""Files of a folder that decide which tokens text becomes."""


def vocabulary_sha256(ids: Mapping[str, int]) -> str:
    """SHA-256 of tokens and their ids, whatever else the files of a tokenizer say."""
    return hashlib.sha256(json.dumps(sorted(ids.items())).encode()).hexdigest()


def file_sha256(path: Path) -> str:
    """SHA-256 of the bytes of a file."""
    return hashlib.sha256(read_input(path)).hexdigest()


def folder_sha256(folder: Path) -> str | None:
    """SHA-256 of the files of the tokenizer in a folder; None if there is none."""
    if not any((folder / name).exists() for name in _VOCABULARIES):
        return None
    contents = [read_input(folder / each) for each in _FILES if (folder / each).exists()]
    return hashlib.sha256(b"".join([*contents, _class_of(folder)])).hexdigest()


def _class_of(folder: Path) -> bytes:
    """Type of the model, by which `transformers` chooses a class where none is named."""
    config, of_model = (
        json_value(read_input(path)) if (path := folder / name).exists() else None
        for name in (CONFIG_FILE, "config.json")
    )
    if (isinstance(config, dict) and "tokenizer_class" in config) or not isinstance(of_model, dict):
        return b""
    return json.dumps([of_model.get("model_type"), of_model.get("tokenizer_class")]).encode()
