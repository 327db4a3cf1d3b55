"""Header of a dataset: what is true of all its samples."""

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

FORMAT = "dynapipe-hpc dataset"
SCHEMA_VERSION = 6
NO_START = -1


@dataclass(frozen=True, slots=True)
class DatasetHeader:
    """Facts about all samples of a dataset.

    `start_id`: Id of the token that a model reads before every sample; None if the first token of
    each sample plays that part, so that it is only read. `turns`: How turns of conversations became
    samples, see `--turns`; empty if no chat template was used.
    """

    tokenizer_name: str
    tokenizer_sha256: str
    vocab_size: int
    eos_id: int
    start_id: int | None
    sources: tuple[str, ...] = ()
    created: str = ""  # time, ISO 8601 in UTC; empty for "now" when writing
    special_tokens: bool = False
    turns: str = ""
    vocabulary_sha256: str = ""
    transformers: str = ""  # version of `transformers` that loaded the tokenizer; empty if none did
    turn_end_ids: tuple[int, ...] = ()  # tokens that end trained turns of conversations, ascending
    has_pairs: bool = False  # whether the samples are preference pairs: an input with two answers
    task_names: tuple[str, ...] = ()
    crcs: Mapping[str, int] = field(default_factory=dict)  # CRC-32 of every array but tokens

    @property
    def end_ids(self) -> tuple[int, ...]:
        """Ids of the tokens that end trained turns of conversations; without any, the EOS id."""
        return self.turn_end_ids or (self.eos_id,)

    def difference(self, other: "DatasetHeader", *more: str) -> str:
        """The first field, of the tokenizer or `more`, in which `other` differs; empty if none."""
        for name in ("tokenizer_sha256", "vocab_size", "eos_id", *more):
            ours, theirs = getattr(self, name), getattr(other, name)
            if ours != theirs:
                return (
                    f"has {name} = {theirs} (tokenizer {other.tokenizer_name}), not {ours} "
                    f"(tokenizer {self.tokenizer_name})"
                )
        return ""


def write_header(header: DatasetHeader) -> bytes:
    """The header as JSON, in ASCII: names of files need not be UTF-8."""
    return json.dumps(asdict(header)).encode()


def read_header(content: bytes) -> DatasetHeader:
    """The header that `write_header` wrote."""
    values = json.loads(content).items()
    fields: dict[str, Any] = {k: tuple(v) if isinstance(v, list) else v for k, v in values}
    return DatasetHeader(**fields)
