"""The length of a padded row."""

from collections.abc import Sequence
from operator import attrgetter
from typing import NamedTuple, TypeVar

import numpy as np
import numpy.typing as npt

from dynapipe_hpc.data.sample import Sample

Tokens = TypeVar("Tokens", int, npt.NDArray[np.int64])

ROW_MULTIPLE = 8
TARGET_MARKERS = 2  # a decoder's row begins and ends with one, which a sample does not count


class RowLengths(NamedTuple):
    """Rows that samples need alone. Arrays of shape (n_samples,).

    Attributes:
        row_tokens: Padded tokens; of an encoder-decoder model, those of the input.
        target_tokens: Padded tokens on the decoder side; 0 in a decoder-only model.
    """

    row_tokens: npt.NDArray[np.int64]
    target_tokens: npt.NDArray[np.int64]


def padded(tokens: Tokens) -> Tokens:
    """Rounds up to a multiple of 8, so that lengths are few and kernels well aligned."""
    return -(-tokens // ROW_MULTIPLE) * ROW_MULTIPLE


def row_lengths(samples: Sequence[Sample], is_encoder_decoder: bool) -> RowLengths:
    """The rows of samples, in their order."""
    inputs, targets = (tokens_of(samples, side) for side in ("input_tokens", "target_tokens"))
    return rows_of_tokens(inputs, targets, is_encoder_decoder)


def rows_of_tokens(
    inputs: npt.NDArray[np.int64], targets: npt.NDArray[np.int64], is_encoder_decoder: bool
) -> RowLengths:
    """The rows of samples of so many tokens of inputs and of targets."""
    if not is_encoder_decoder:
        return RowLengths(padded(inputs + targets), np.zeros_like(targets))
    # Without input the encoder still has a row, of padding.
    return RowLengths(padded(np.maximum(inputs, 1)), padded(targets + TARGET_MARKERS))


def tokens_of(samples: Sequence[Sample], side: str) -> npt.NDArray[np.int64]:
    """One number of every sample, by name."""
    return np.fromiter(map(attrgetter(side), samples), np.int64, len(samples))
