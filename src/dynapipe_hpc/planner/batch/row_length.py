"""Positions that samples take in a model, and the padded rows that hold them.

See docs/decisions/0023-a-sample-takes-as-many-positions-as-it-has-tokens.md.
"""

from collections.abc import Sequence
from operator import attrgetter
from typing import NamedTuple, TypeVar

import numpy as np
import numpy.typing as npt

from dynapipe_hpc.architecture.model_shape import ModelShape
from dynapipe_hpc.data.errors import InputError
from dynapipe_hpc.data.microbatch import PaddedRows, Recompute
from dynapipe_hpc.data.sample import Sample

Tokens = TypeVar("Tokens", int, npt.NDArray[np.int64])

ROW_MULTIPLE = 8


class RowLengths(NamedTuple):
    """Lengths of the rows that samples need. Arrays of shape (n_samples,).

    `row_tokens`: Tokens of the row; in an encoder-decoder model, of the row of the input.
    `target_tokens`: Tokens of the row on the decoder side; 0 in a decoder-only model.
    """

    row_tokens: npt.NDArray[np.int64]
    target_tokens: npt.NDArray[np.int64]


class Preferences(NamedTuple):
    """Documents and attention pairs of samples with preference pairs. Shape (n_samples,) each."""

    n_documents: npt.NDArray[np.int64]
    pairs: npt.NDArray[np.int64]


def preferences_of(samples: Sequence[Sample]) -> Preferences | None:
    """Documents and attention pairs of samples; None if no sample is a preference pair."""
    rejected = tokens_of(samples, "rejected_tokens")
    if not rejected.any():
        return None
    return Preferences(1 + (rejected > 0), tokens_of(samples, "attention_pairs"))


def padded(tokens: Tokens, multiple: int = ROW_MULTIPLE) -> Tokens:
    """Lengths rounded up to a multiple: fewer different lengths, well aligned for kernels."""
    return -(-tokens // multiple) * multiple


def row_lengths(samples: Sequence[Sample], is_encoder_decoder: bool) -> RowLengths:
    """Lengths of the padded rows that samples need if each has a row of its own, in their order."""
    inputs, targets = (tokens_of(samples, side) for side in ("input_tokens", "answer_tokens"))
    return rows_of_tokens(inputs, targets, is_encoder_decoder)


def rows_of_tokens(
    inputs: npt.NDArray[np.int64], targets: npt.NDArray[np.int64], is_encoder_decoder: bool
) -> RowLengths:
    """Lengths of the padded rows of samples with the given numbers of tokens."""
    return RowLengths(*map(padded, documents_of_tokens(inputs, targets, is_encoder_decoder)))


def document_lengths(samples: Sequence[Sample], is_encoder_decoder: bool) -> RowLengths:
    """Positions that samples take in packed rows, in their order, see `documents_of_tokens`."""
    inputs, targets = (tokens_of(samples, side) for side in ("input_tokens", "answer_tokens"))
    return documents_of_tokens(inputs, targets, is_encoder_decoder)


def documents_of_tokens(
    inputs: npt.NDArray[np.int64], targets: npt.NDArray[np.int64], is_encoder_decoder: bool
) -> RowLengths:
    """Positions of samples that attend to themselves only.

    A sample without input has a position for its target to attend to.
    """
    row_positions, target_positions = positions(inputs, targets, is_encoder_decoder)
    return RowLengths(np.maximum(row_positions, 1), target_positions)


def positions(
    inputs: npt.NDArray[np.int64], targets: npt.NDArray[np.int64], is_encoder_decoder: bool
) -> RowLengths:
    """Positions that samples take in rows, without padding.

    A decoder reads a sample shifted by one position: a start token comes first, and the last token
    is not read. A sample therefore takes as many positions as it has tokens, the end-of-sequence
    token of its target included.
    """
    if is_encoder_decoder:
        return RowLengths(inputs, targets)
    return RowLengths(inputs + targets, np.zeros_like(targets))


def tokens_of(samples: Sequence[Sample], side: str) -> npt.NDArray[np.int64]:
    """One attribute of every sample, by name."""
    return np.fromiter(map(attrgetter(side), samples), np.int64, len(samples))


def padded_microbatch(
    samples: Sequence[Sample], recompute: Recompute, is_encoder_decoder: bool = False
) -> PaddedRows:
    """One sample per row, all rows as long as the longest on either side."""
    row_tokens, target_tokens = map(max, row_lengths(samples, is_encoder_decoder))
    return PaddedRows(
        sample_ids=tuple(sample.sample_id for sample in samples),
        row_tokens=int(row_tokens),
        recompute=recompute,
        target_tokens=int(target_tokens),
    )


def check_rows(samples: Sequence[Sample], shape: ModelShape, multiple: int = ROW_MULTIPLE) -> None:
    """Refuses samples that need longer rows than the model allows."""
    rows = padded(np.stack(row_lengths(samples, shape.has_target_rows)), multiple)
    too_long = np.flatnonzero((rows > shape.max_tokens).any(axis=0))
    if too_long.size:
        sample = samples[too_long[0]]
        raise InputError(
            f"sample {too_long[0]} ({sample.describe()}) "
            f"needs rows of up to {rows[:, too_long[0]].max()}, but model.max_tokens is "
            f"{shape.max_tokens}; raise it, or cut long samples"
        )
