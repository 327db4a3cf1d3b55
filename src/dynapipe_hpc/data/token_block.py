"""Blocks of tokenized samples on their way into a dataset."""

import zlib
from collections.abc import Iterator, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass
from itertools import chain
from typing import Any, NamedTuple, Self

import numpy as np
import numpy.typing as npt

from dynapipe_hpc.data.trained_tokens import Span, Spans

TokenArray = npt.NDArray[np.unsignedinteger]
"""Token ids, shape (n_tokens,), uint16 or uint32."""
NO_TOKENS: TokenArray = np.empty(0, np.uint16)
PARTS = ("inputs", "targets", "rejected")
"""Parts of a sample; only preference pairs have rejected answers."""


class SampleTokens(NamedTuple):
    """The used tokens of a sample, by part, and the token that a model reads before them."""

    inputs: npt.NDArray[np.integer[Any]]
    targets: npt.NDArray[np.integer[Any]]
    rejected: npt.NDArray[np.integer[Any]]
    start: int


class TokenizedSample(NamedTuple):
    """Tokens of a sample, and its task; in a conversation, the target begins with the last turn."""

    inputs: Sequence[int]
    targets: Sequence[int]
    task: str
    spans: Sequence[Span] = ()  # spans of trained tokens; empty if the target is trained
    rejected: Sequence[int] = ()  # the rejected answer of a preference pair


def token_type(vocab_size: int) -> np.dtype[np.unsignedinteger]:
    """The smallest unsigned type (uint16 or uint32) that holds every token id."""
    return np.dtype("<u2" if vocab_size <= 2**16 else "<u4")


@dataclass(frozen=True, slots=True)
class TokenBlock:
    """Some consecutive samples of a dataset.

    `tokens`: Tokens of all samples, by part; targets end with the end-of-sequence token. `lengths`:
    Number of tokens per sample and part, int32, shape (n_samples, n_parts).
    """

    tokens: tuple[TokenArray, ...]
    lengths: npt.NDArray[np.int32]
    tasks: tuple[str, ...]
    spans: Spans
    crcs: npt.NDArray[np.uint32]  # CRC-32 of the tokens of every sample, shape (n_samples,)
    turn_end_ids: AbstractSet[int]

    @classmethod
    def from_samples(
        cls,
        samples: Sequence[TokenizedSample],
        vocab_size: int,
        turn_end_ids: AbstractSet[int] = frozenset(),
        *,
        has_pairs: bool = False,
    ) -> Self:
        parts = [[sample.inputs for sample in samples], [sample.targets for sample in samples]]
        if has_pairs:
            parts.append([sample.rejected for sample in samples])
        lengths = np.array([[*map(len, part)] for part in parts], np.int32).T
        dtype = token_type(vocab_size)
        tokens: tuple[TokenArray, ...] = tuple(
            np.fromiter(chain.from_iterable(part), dtype) for part in parts
        )
        return cls(
            tokens,
            lengths,
            tuple(sample.task for sample in samples),
            Spans.from_samples([sample.spans for sample in samples]),
            np.fromiter(_crcs(lengths, tokens), np.uint32),
            turn_end_ids,
        )


def _crcs(lengths: npt.NDArray[np.int32], tokens: Sequence[TokenArray]) -> Iterator[int]:
    """CRC-32 of all tokens of every sample."""
    ends = np.cumsum(lengths, axis=0, dtype=np.int64)
    for of_parts, parts_end in zip(lengths.tolist(), ends.tolist(), strict=True):
        parts = zip(tokens, of_parts, parts_end, strict=True)
        yield zlib.crc32(b"".join(part[end - n : end].tobytes() for part, n, end in parts))
