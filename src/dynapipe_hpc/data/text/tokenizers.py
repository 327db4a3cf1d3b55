"""Tokenizers: from text to token ids."""

import hashlib
import json
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

import tokenizers
from tokenizers.models import BPE
from tokenizers.pre_tokenizers import ByteLevel

from dynapipe_hpc.data.errors import InputError
from dynapipe_hpc.data.input_file import read_input

END_TOKENS = ("<|endoftext|>", "</s>", "<|end_of_text|>", "<eos>", "[SEP]")
"""Well-known names of the end-of-sequence token, most likely first."""


class Tokenizer(Protocol):
    """Turns text into token ids below `vocab_size`; can be sent to another process."""

    @property
    def name(self) -> str:
        """Name that the dataset records as the origin of its tokens."""

    @property
    def sha256(self) -> str:
        """SHA-256 of everything that determines the token ids, in hexadecimal."""

    @property
    def vocab_size(self) -> int:
        """Number of token ids."""

    @property
    def eos_id(self) -> int:
        """The token that ends every target."""

    @property
    def special_tokens(self) -> bool:
        """Whether text that spells the name of a special token becomes that token."""

    def encode(self, texts: Sequence[str]) -> list[Sequence[int]]:
        """Token ids of every text, with no special tokens around them."""


@dataclass(frozen=True, slots=True)
class ByteTokenizer:
    """A tokenizer without files: every UTF-8 byte is a token, and one more ends the sequence."""

    name: str = "bytes"
    sha256: str = hashlib.sha256(b"bytes").hexdigest()
    vocab_size: int = 257
    eos_id: int = 256
    special_tokens: bool = False

    def encode(self, texts: Sequence[str]) -> list[Sequence[int]]:
        """Token ids of every text."""
        return [text.encode() for text in texts]


@dataclass(frozen=True, slots=True)
class VocabularyTokenizer:
    """A tokenizer read from files.

    Attributes:
        name: Names of the files.
        sha256: SHA-256 of the files' bytes, in the order in which they were named.
        vocab_size: Largest token id + 1, added tokens included.
        eos_id: Id of the token that ends every target.
        model: Tokenizer of the library, which neither truncates nor pads.
        special_tokens: Whether text that spells the name of a special token becomes that token.
    """

    name: str
    sha256: str
    vocab_size: int
    eos_id: int
    model: tokenizers.Tokenizer
    special_tokens: bool

    def encode(self, texts: Sequence[str]) -> list[Sequence[int]]:
        """Token ids of every text.

        Raises:
            InputError: The tokenizer refuses one.
        """
        with _explained(f"{self.name}: cannot make tokens of the text"):
            # Set each time, because it is not kept when sent to another process.
            self.model.encode_special_tokens = not self.special_tokens
            encoded = self.model.encode_batch_fast(texts, add_special_tokens=False)
        return [each.ids for each in encoded]


@contextmanager
def _explained(what: str) -> Iterator[None]:
    """Turns whatever the library raises, even a Rust panic, into an `InputError`."""
    try:
        yield
    except (KeyboardInterrupt, SystemExit):
        raise
    except BaseException as error:
        raise InputError(f"{what}: {error}") from None


def load_tokenizer(
    paths: Sequence[Path], end_token: str | None = None, *, special_tokens: bool = False
) -> Tokenizer:
    """Loads a tokenizer.

    Args:
        paths: Empty for bytes; one Hugging Face `tokenizers` file; or the vocabulary (JSON)
            and the merges (text) of a byte-level BPE like that of GPT-2.
        end_token: Text of the token that ends a sequence; by default a well-known one.
        special_tokens: Whether text that spells the name of a special token becomes that token.

    Raises:
        InputError: A file is missing or of another kind, or no token is known to end a sequence.
    """
    if not paths:
        if end_token is not None:
            raise InputError(f"--eos {end_token}: the byte tokenizer has an end token of its own")
        if special_tokens:
            raise InputError("--special-tokens: the byte tokenizer has none; leave it out")
        return ByteTokenizer()
    digest = hashlib.sha256(b"".join(read_input(path) for path in paths)).hexdigest()
    name = " ".join(path.name for path in paths)
    model = _load_model(paths)
    ids = model.get_vocab()
    end = _end(ids, name, end_token)
    # Files differ in whether they call it special.
    model.add_special_tokens([tokenizers.AddedToken(end, special=True, normalized=False)])
    n_ids = max(ids.values()) + 1
    return VocabularyTokenizer(name, digest, n_ids, ids[end], model, special_tokens)


def _load_model(paths: Sequence[Path]) -> tokenizers.Tokenizer:
    match paths:
        case [path]:
            model = _load_single_file(path)
        case [vocabulary, merges]:
            model = _load_byte_level_bpe(vocabulary, merges)
        case _:
            raise InputError(f"--tokenizer takes one file or two, got {len(paths)}")
    # A tokenizer file may have both settings, from the model that it was saved with.
    model.no_truncation()
    model.no_padding()
    return model


def _load_single_file(path: Path) -> tokenizers.Tokenizer:
    try:
        content = json.loads(read_input(path))
    except (ValueError, RecursionError) as error:
        raise InputError(f"{path}: not a tokenizer file, which is JSON: {error}") from None
    # A vocabulary may have a token of this name.
    if not isinstance(content, dict) or not isinstance(content.get("model"), dict):
        raise InputError(
            f"{path}: not a tokenizer file, it has no 'model'; if it is a vocabulary, give its "
            "merges.txt too: --tokenizer VOCAB.json --tokenizer MERGES.txt"
        )
    with _explained(f"{path}: cannot be loaded as a tokenizer"):
        return tokenizers.Tokenizer.from_file(str(path))


def _load_byte_level_bpe(vocabulary: Path, merges: Path) -> tokenizers.Tokenizer:
    files = f"{vocabulary}, {merges}"
    with _explained(
        f"{files}: not the vocabulary and the merges of a byte-level BPE, in this order"
    ):
        model = tokenizers.Tokenizer(BPE.from_file(str(vocabulary), str(merges)))
    model.pre_tokenizer = ByteLevel(add_prefix_space=False)
    return model


def _end(ids: dict[str, int], name: str, end_token: str | None) -> str:
    if end_token is not None:
        if end_token not in ids:
            raise InputError(f"--eos {end_token}: {name} has no such token")
        return end_token
    for known in END_TOKENS:
        if known in ids:
            return known
    raise InputError(
        f"{name}: none of its tokens is known to end a sequence ({', '.join(END_TOKENS)}); "
        "name the one that does: --eos TOKEN"
    )
