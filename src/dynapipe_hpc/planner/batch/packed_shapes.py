"""Packed rows: their micro-batches, and the equal rows by which their costs are looked up."""

from collections.abc import Sequence
from itertools import accumulate, pairwise
from typing import assert_never

import numpy as np

from dynapipe_hpc import _kernels
from dynapipe_hpc.data.microbatch import (
    Branch,
    DenseRows,
    MicroBatch,
    PackedRow,
    PaddedRows,
    Recompute,
)
from dynapipe_hpc.data.sample import Sample
from dynapipe_hpc.planner.batch.row_length import padded
from dynapipe_hpc.planner.cost.cost_model import IntArray, KnownRows, Shapes


def packed_microbatch(
    samples: Sequence[Sample],
    recompute: Recompute,
    is_encoder_decoder: bool = False,
    *,
    row_tokens: int = 0,
    target_tokens: int = 0,
) -> PackedRow:
    """Samples laid end to end in one row, or in one row of inputs and one row of targets.

    `samples`: The samples, in order. `row_tokens`: Least length of the row, which is filled up to
    the next multiple of 8 anyway.
    """
    lengths = [sample.tokens for sample in samples]
    target_offsets: tuple[int, ...] = ()
    if is_encoder_decoder:
        # Without input there still is a position for the target to attend to.
        lengths = [max(sample.input_tokens, 1) for sample in samples]
        target_offsets = (0, *accumulate([sample.target_tokens for sample in samples]))
    offsets = (0, *accumulate(lengths))
    return PackedRow(
        sample_ids=tuple([sample.sample_id for sample in samples]),
        row_tokens=max(padded(offsets[-1]), row_tokens),
        recompute=recompute,
        target_tokens=max(padded(target_offsets[-1]), target_tokens) if is_encoder_decoder else 0,
        offsets=offsets,
        target_offsets=target_offsets,
        branches=_branches(samples, offsets),
    )


def _branches(samples: Sequence[Sample], offsets: Sequence[int]) -> tuple[Branch, ...]:
    """Branches of a row of preference pairs; none in other rows."""
    return tuple(
        Branch(begin + sample.input_tokens + sample.target_tokens, sample.input_tokens)
        for sample, begin in zip(samples, offsets, strict=False)
        if sample.is_pair
    )


def sliced_shapes(
    row_tokens: IntArray, spans: IntArray, other_pairs: int, known: KnownRows
) -> Shapes:
    """Rows with the same tokens and pairs as rows of slices, which see all tokens before them.

    Causal attention counts as all pairs of a sample, so a slice has the pairs up to its end less
    the pairs up to its begin.

    `row_tokens`: Length of every packed row, fill included, shape (n_slices,). `spans`: Begin and
    end of every slice in its sample, shape (n_slices, 2). `other_pairs`: Pairs of tokens within
    the samples that follow the slice in its row.
    """
    begin, end = spans.T
    tokens = row_tokens.astype(np.float64)
    most = np.minimum(known.most, tokens / known.least_tokens)
    n_rows = np.minimum(tokens**2 / (end**2 - begin**2 + other_pairs), most)
    n_rows = n_rows if other_pairs else np.minimum(n_rows, 1.0)
    return Shapes.padded(n_rows, tokens / n_rows, np.zeros_like(n_rows))


def shapes_of(microbatches: Sequence[MicroBatch], known: KnownRows) -> Shapes:
    """Sizes of micro-batches of any layout."""
    each = [_sizes_of(microbatch, known) for microbatch in microbatches]
    return Shapes(*np.array(each).reshape(-1, len(Shapes._fields)).T)


def _sizes_of(microbatch: MicroBatch, known: KnownRows) -> tuple[float, ...]:
    match microbatch:
        case PaddedRows() | DenseRows():
            n_rows = microbatch.n_rows
            return (n_rows, microbatch.row_tokens, microbatch.target_tokens, n_rows)
        case PackedRow():
            return _packed_sizes(microbatch, known)
        case _:
            assert_never(microbatch)


def unseen_pairs(microbatch: PackedRow) -> int:
    """Pairs of a chosen and a rejected token, which do not attend to each other, counted twice."""
    spans = pairwise(microbatch.offsets)
    return sum(
        2 * (branch.begin - begin - branch.prompt_tokens) * (end - branch.begin)
        for branch, (begin, end) in zip(microbatch.branches, spans, strict=False)
    )


def _packed_sizes(microbatch: PackedRow, known: KnownRows) -> tuple[float, ...]:
    if (part := microbatch.slice) is not None:
        others = sum((end - begin) ** 2 for begin, end in pairwise(microbatch.offsets[1:]))
        spans = np.array([[part.begin, part.end]])
        shapes = sliced_shapes(np.array([microbatch.row_tokens]), spans, others, known)
        return tuple(float(sizes[0]) for sizes in shapes)
    inputs, targets = np.diff(microbatch.offsets), np.diff(microbatch.target_offsets)
    of_targets = targets @ (inputs + targets) if targets.size else 0
    sums = (
        len(inputs) + len(microbatch.branches),
        int(inputs.sum()),
        int(inputs @ inputs) - unseen_pairs(microbatch),
        int(targets.sum()),
        int(of_targets),
    )
    return packed_rows(microbatch.row_tokens, microbatch.target_tokens, sums, known)


def packed_rows(
    row_tokens: int, target_tokens: int, sums: tuple[int, int, int, int, int], known: KnownRows
) -> tuple[float, ...]:
    """Entries of `Shapes` of a packed micro-batch, see equal_rows.hpp.

    `target_tokens`: Length of the row of targets; 0 if there is none. `sums`: Five counts: texts
    that attend only to themselves, input tokens, pairs of input tokens within a text, target
    tokens, and pairs of a target token and a token that it attends to.
    """
    limits = (known.most, known.least_tokens, known.longest_tokens)
    return _kernels.equal_rows(row_tokens, target_tokens, sums, limits)
