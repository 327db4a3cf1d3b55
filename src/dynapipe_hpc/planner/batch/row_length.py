"""How many positions of a model samples take, and the padded rows that hold them.

See docs/decisions/0023-a-sample-takes-as-many-positions-as-it-has-tokens.md.
"""

from collections.abc import Sequence
from operator import attrgetter
from typing import NamedTuple, TypeVar

import numpy as np
import numpy.typing as npt

from dynapipe_hpc.data.sample import Sample

Tokens = TypeVar("Tokens", int, npt.NDArray[np.int64])

ROW_MULTIPLE = 8


class RowLengths(NamedTuple):
    """Lengths that samples need of rows. Arrays of shape (n_samples,).

    Attributes:
        row_tokens: Tokens; of an encoder-decoder model, those of the input.
        target_tokens: Tokens on the decoder side; 0 in a decoder-only model.
    """

    row_tokens: npt.NDArray[np.int64]
    target_tokens: npt.NDArray[np.int64]


def padded(tokens: Tokens) -> Tokens:
    """Rounds up to a multiple of 8, so that lengths are few and kernels well aligned."""
    return -(-tokens // ROW_MULTIPLE) * ROW_MULTIPLE


def row_lengths(samples: Sequence[Sample], is_encoder_decoder: bool) -> RowLengths:
    """The padded rows that samples need alone, in their order."""
    inputs, targets = (tokens_of(samples, side) for side in ("input_tokens", "target_tokens"))
    return rows_of_tokens(inputs, targets, is_encoder_decoder)


def rows_of_tokens(
    inputs: npt.NDArray[np.int64], targets: npt.NDArray[np.int64], is_encoder_decoder: bool
) -> RowLengths:
    """The padded rows of samples of so many tokens of inputs and of targets."""
    row_positions, target_positions = positions(inputs, targets, is_encoder_decoder)
    # Without input the encoder still has a row, of padding.
    return RowLengths(padded(np.maximum(row_positions, 1)), padded(target_positions))


def positions(
    inputs: npt.NDArray[np.int64], targets: npt.NDArray[np.int64], is_encoder_decoder: bool
) -> RowLengths:
    """What samples take of rows, without padding.

    A decoder reads a sample one position late, after a start token in place of its last token:
    as many positions as tokens. The end-of-sequence token is part of the target.
    """
    if is_encoder_decoder:
        return RowLengths(inputs, targets)
    return RowLengths(inputs + targets, np.zeros_like(targets))


def tokens_of(samples: Sequence[Sample], side: str) -> npt.NDArray[np.int64]:
    """One number of every sample, by name."""
    return np.fromiter(map(attrgetter(side), samples), np.int64, len(samples))
