"""What a dataset says about itself: the attributes of its HDF5 file."""

from collections.abc import Mapping, MutableMapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

import numpy as np
import numpy.typing as npt

FORMAT = "dynapipe-hpc dataset"
SCHEMA_VERSION = 1


@dataclass(frozen=True, slots=True)
class DatasetHeader:
    """What holds for all samples of a dataset.

    Attributes:
        tokenizer_name: Where the token ids come from.
        tokenizer_sha256: Hash of that tokenizer, in hexadecimal.
        vocab_size: Number of token ids.
        eos_id: The token that ends every target.
        sources: Names of the files that the samples were read from.
        created: When the dataset was made, ISO 8601 in UTC; empty for "now" when writing.
    """

    tokenizer_name: str
    tokenizer_sha256: str
    vocab_size: int
    eos_id: int
    sources: tuple[str, ...] = ()
    created: str = ""


def write_header(attributes: MutableMapping[str, Any], header: DatasetHeader) -> None:
    """Puts the header into a file's attributes."""
    attributes["format"] = np.bytes_(FORMAT.encode())
    attributes["schema_version"] = SCHEMA_VERSION
    attributes["tokenizer_name"] = np.bytes_(header.tokenizer_name.encode())
    attributes["tokenizer_sha256"] = np.bytes_(header.tokenizer_sha256.encode())
    attributes["vocab_size"] = header.vocab_size
    attributes["eos_id"] = header.eos_id
    attributes["sources"] = fixed_length(header.sources)
    created = header.created or datetime.now(UTC).isoformat(timespec="seconds")
    attributes["created"] = np.bytes_(created.encode())


def read_header(attributes: Mapping[str, Any]) -> DatasetHeader:
    """Gets the header from a file's attributes; whatever is amiss raises."""
    return DatasetHeader(
        tokenizer_name=bytes(attributes["tokenizer_name"]).decode(),
        tokenizer_sha256=bytes(attributes["tokenizer_sha256"]).decode(),
        vocab_size=int(attributes["vocab_size"]),
        eos_id=int(attributes["eos_id"]),
        sources=strings(attributes["sources"]),
        created=bytes(attributes["created"]).decode(),
    )


def fixed_length(texts: Sequence[str]) -> npt.NDArray[np.bytes_]:
    """UTF-8 of one length, padded with zeros: no variable-length types in the file."""
    encoded = [text.encode() for text in texts]
    return np.array(encoded, f"S{max(map(len, encoded), default=1)}")


def strings(encoded: npt.NDArray[np.bytes_]) -> tuple[str, ...]:
    """The texts that `fixed_length` encoded."""
    return tuple(text.decode() for text in encoded.tolist())
