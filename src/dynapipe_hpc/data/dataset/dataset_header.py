"""Header of a dataset: the attributes of its HDF5 file."""

from collections.abc import Iterable, Mapping, MutableMapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

import numpy as np
import numpy.typing as npt

from dynapipe_hpc.data.errors import InputError, quoted

FORMAT = "dynapipe-hpc dataset"
SCHEMA_VERSION = 3
PAIRS_VERSION = 4
"""Schema version of datasets of preference pairs, which have rejected answers."""
NO_START = -1


@dataclass(frozen=True, slots=True)
class DatasetHeader:
    """Facts about all samples of a dataset.

    Attributes:
        tokenizer_name: Name of the tokenizer or of its files.
        tokenizer_sha256: SHA-256 of the tokenizer, in hexadecimal.
        vocab_size: Number of token ids.
        eos_id: Id of the token that ends every target.
        start_id: Id of the token that a model reads before every sample; None if the first token of
            a sample is that token, so that it is only read.
        sources: Names of the files that the samples were read from.
        created: Time when the dataset was made, ISO 8601 in UTC; empty for "now" when writing.
        content_sha256: `ContentHash` of the samples, in hexadecimal; empty in an index.
        special_tokens: Whether text could become special tokens.
        turns: How turns of conversations became samples, see `--turns`; empty if no chat template
            was used.
        turn_end_ids: Ids of the tokens that end trained turns of conversations, ascending.
        has_pairs: Whether the samples are preference pairs: an input with two answers.
        vocabulary_sha256: SHA-256 of the tokens and ids in the tokenizer's files, in hexadecimal;
            empty if unknown.
    """

    tokenizer_name: str
    tokenizer_sha256: str
    vocab_size: int
    eos_id: int
    start_id: int | None
    sources: tuple[str, ...] = ()
    created: str = ""
    content_sha256: str = ""
    special_tokens: bool = False
    turns: str = ""
    vocabulary_sha256: str = ""
    turn_end_ids: tuple[int, ...] = ()
    has_pairs: bool = False

    @property
    def end_ids(self) -> tuple[int, ...]:
        """Ids of the tokens that end what is trained: turns of conversations, or all targets."""
        return self.turn_end_ids or (self.eos_id,)


def write_header(attributes: MutableMapping[str, Any], header: DatasetHeader) -> None:
    """Writes the header, except the checksum, into a file's attributes."""
    attributes["format"] = np.bytes_(FORMAT.encode())
    attributes["schema_version"] = PAIRS_VERSION if header.has_pairs else SCHEMA_VERSION
    attributes["tokenizer_name"] = np.bytes_(header.tokenizer_name.encode())
    attributes["tokenizer_sha256"] = np.bytes_(header.tokenizer_sha256.encode())
    attributes["vocab_size"] = header.vocab_size
    attributes["eos_id"] = header.eos_id
    attributes["start_id"] = NO_START if header.start_id is None else header.start_id
    attributes["special_tokens"] = int(header.special_tokens)
    if header.turns:
        attributes["turns"] = np.bytes_(header.turns.encode())
    if header.vocabulary_sha256:
        attributes["vocabulary_sha256"] = np.bytes_(header.vocabulary_sha256.encode())
    attributes["sources"] = fixed_length(header.sources)
    created = header.created or datetime.now(UTC).isoformat(timespec="seconds")
    attributes["created"] = np.bytes_(created.encode())


def write_content_hash(attributes: MutableMapping[str, Any], sha256: str) -> None:
    """Writes the checksum of the samples, which is known only when all are written."""
    attributes["content_sha256"] = np.bytes_(sha256.encode())


def write_turn_end_ids(attributes: MutableMapping[str, Any], ids: Iterable[int]) -> None:
    """Writes the tokens that end trained turns, which are known only when all are written."""
    if ordered := sorted(ids):
        attributes["turn_end_ids"] = np.array(ordered, np.int64)


def read_header(attributes: Mapping[str, Any]) -> DatasetHeader:
    """Reads the header from a file's attributes, given as `StoredAttributes`.

    Raises:
        InputError: An attribute is missing or invalid.
        ValueError: An attribute cannot be converted; a TypeError is also possible.
    """
    start_id = int(_value(attributes, "start_id"))
    header = DatasetHeader(
        tokenizer_name=_text(attributes, "tokenizer_name"),
        tokenizer_sha256=_text(attributes, "tokenizer_sha256"),
        vocab_size=int(_value(attributes, "vocab_size")),
        eos_id=int(_value(attributes, "eos_id")),
        start_id=None if start_id == NO_START else start_id,
        sources=_texts(attributes, "sources"),
        created=_text(attributes, "created"),
        special_tokens=_flag(attributes, "special_tokens"),
        turns=_text({"turns": "", **attributes}, "turns"),
        turn_end_ids=_ids(attributes, "turn_end_ids"),
        content_sha256=_text({"content_sha256": "", **attributes}, "content_sha256"),
        vocabulary_sha256=_text({"vocabulary_sha256": "", **attributes}, "vocabulary_sha256"),
        has_pairs=int(_value(attributes, "schema_version")) == PAIRS_VERSION,
    )
    if not 0 <= header.eos_id < header.vocab_size:
        raise InputError(f"eos_id is {header.eos_id}, but vocab_size {header.vocab_size}")
    if header.start_id is not None and not 0 <= header.start_id < header.vocab_size:
        raise InputError(f"start_id is {header.start_id}, but vocab_size {header.vocab_size}")
    if not all(0 <= each < header.vocab_size for each in header.turn_end_ids):
        ids = quoted(header.turn_end_ids)
        raise InputError(f"turn_end_ids are {ids}, but vocab_size {header.vocab_size}")
    return header


def _text(attributes: Mapping[str, Any], name: str) -> str:
    value = _value(attributes, name)
    if not isinstance(value, str):
        raise InputError(f"{name} is {quoted(value)}, not text")
    return value


def _flag(attributes: Mapping[str, Any], name: str) -> bool:
    value = _value(attributes, name)
    if value not in (0, 1):
        raise InputError(f"{name} is {quoted(value)}, neither 0 nor 1")
    return bool(value)


def _ids(attributes: Mapping[str, Any], name: str) -> tuple[int, ...]:
    value = np.asarray(attributes.get(name, np.zeros(0, np.int64)))
    if value.ndim != 1 or value.dtype.kind not in "iu":
        raise InputError(f"{name} is {quoted(value)}, not a list of token ids")
    return tuple(value.tolist())


def _texts(attributes: Mapping[str, Any], name: str) -> tuple[str, ...]:
    value = _value(attributes, name)
    if not isinstance(value, tuple) or not all(isinstance(each, str) for each in value):
        raise InputError(f"{name} is {quoted(value)}, not a list of texts")
    return value


def _value(attributes: Mapping[str, Any], name: str) -> Any:
    if name not in attributes:
        raise InputError(f"attribute '{name}' is missing")
    return attributes[name]


def fixed_length(texts: Sequence[str]) -> npt.NDArray[np.bytes_]:
    """Texts as UTF-8 of equal length, padded with zeros: no variable-length types in the file."""
    encoded = [text.encode(errors="backslashreplace") for text in texts]
    return np.array(encoded, f"S{max(map(len, encoded), default=1)}")


def strings(encoded: object) -> tuple[str, ...]:
    """The texts that `fixed_length` encoded.

    Raises:
        InputError: The value is not such an array.
        UnicodeDecodeError: A text is not UTF-8.
    """
    if not isinstance(encoded, np.ndarray) or encoded.dtype.kind != "S":
        raise InputError(f"texts of fixed length expected, found {quoted(encoded)}")
    return tuple(text.decode() for text in encoded.tolist())
