"""Blocks of tokenized samples on their way into a dataset."""

from collections.abc import Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass
from itertools import chain
from typing import Self

import numpy as np
import numpy.typing as npt

from dynapipe_hpc.data.spans import Span, Spans

TokenArray = npt.NDArray[np.unsignedinteger]
"""Token ids, shape (n_tokens,), uint16 or uint32."""


def token_type(vocab_size: int) -> np.dtype[np.unsignedinteger]:
    """The smallest unsigned type (uint16 or uint32) that holds every token id."""
    return np.dtype(np.uint16) if vocab_size <= 2**16 else np.dtype(np.uint32)


@dataclass(frozen=True, slots=True)
class TokenSequences:
    """Token sequences, concatenated.

    Attributes:
        tokens: All tokens, shape (sum of lengths,).
        lengths: Number of tokens of every sequence, shape (n_sequences,).
    """

    tokens: TokenArray
    lengths: npt.NDArray[np.int64]

    @classmethod
    def join(cls, sequences: Sequence[Sequence[int]], dtype: np.dtype[np.unsignedinteger]) -> Self:
        """Concatenates the sequences in order."""
        tokens: TokenArray = np.fromiter(chain.from_iterable(sequences), dtype)
        return cls(tokens, np.array([len(sequence) for sequence in sequences], np.int64))


@dataclass(frozen=True, slots=True)
class TokenBlock:
    """Some consecutive samples of a dataset.

    Attributes:
        inputs: Inputs of the samples.
        targets: Targets of the samples, each with its end-of-sequence token.
        tasks: Task names of the samples.
        spans: Spans of trained tokens of the samples.
        turn_end_ids: Ids of the tokens that end trained turns of conversations.
        rejected: Rejected answers of preference pairs; None if the samples are no pairs.
    """

    inputs: TokenSequences
    targets: TokenSequences
    tasks: tuple[str, ...]
    spans: Spans
    turn_end_ids: AbstractSet[int] = frozenset()
    rejected: TokenSequences | None = None

    @classmethod
    def from_samples(
        cls,
        samples: Sequence[tuple[Sequence[int], Sequence[int], str]],
        vocab_size: int,
        spans: Sequence[Sequence[Span]] = (),
        turn_end_ids: AbstractSet[int] = frozenset(),
        *,
        rejected: Sequence[Sequence[int]] | None = None,
    ) -> Self:
        """Makes a block of (input tokens, target tokens, task) triples.

        Args:
            samples: The triples.
            vocab_size: Number of token ids.
            spans: Spans of trained tokens of every sample; empty if all train their targets.
            turn_end_ids: Ids of the tokens that end trained turns of conversations.
            rejected: Tokens of the rejected answer of every sample, if they are preference pairs.
        """
        dtype = token_type(vocab_size)
        return cls(
            TokenSequences.join([inputs for inputs, _, _ in samples], dtype),
            TokenSequences.join([targets for _, targets, _ in samples], dtype),
            tuple(task for _, _, task in samples),
            Spans.from_samples(spans) if spans else Spans.none(len(samples)),
            turn_end_ids,
            None if rejected is None else TokenSequences.join(rejected, dtype),
        )

    @property
    def n_tokens(self) -> int:
        """Number of tokens of inputs, targets and rejected answers."""
        n_rejected = 0 if self.rejected is None else len(self.rejected.tokens)
        return len(self.inputs.tokens) + len(self.targets.tokens) + n_rejected
