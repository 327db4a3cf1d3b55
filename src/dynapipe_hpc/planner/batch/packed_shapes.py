"""Equal rows by which packed micro-batches are looked up."""

from collections.abc import Sequence
from itertools import pairwise
from typing import NamedTuple, Self, assert_never

import numpy as np

from dynapipe_hpc.data.microbatch import (
    MAX_FILL_TOKENS,
    DenseRows,
    MicroBatch,
    PackedRow,
    PaddedRows,
)
from dynapipe_hpc.planner.cost.cost_model import FloatArray, IntArray, KnownRows, Shapes, Sizes

NO_TARGETS: IntArray = np.zeros(1, np.int64)


class Sums(NamedTuple):
    """Sums over the samples of packed micro-batches.

    Arrays of shape (n_microbatches,). A sample has a positions of input and b of target; in a
    decoder-only model, a of both.

    Attributes:
        n_samples: Number of samples; a preference pair, whose answers do not see each other, counts
            as two.
        inputs: Sum of a.
        input_pairs: Sum of a^2: pairs of positions of one sample; of preference pairs, see
            `Sample.attention_pairs`.
        targets: Sum of b.
        target_pairs: Sum of b (a + b): pairs of a target and an input or target of its sample.
    """

    n_samples: Sizes
    inputs: Sizes
    input_pairs: Sizes
    targets: Sizes = NO_TARGETS
    target_pairs: Sizes = NO_TARGETS

    def with_fill(self, row_tokens: Sizes, target_tokens: Sizes = NO_TARGETS) -> Self:
        """Sums over samples and documents of `MAX_FILL_TOKENS` tokens that fill rows up.

        Shorter ones are left out. Documents of targets attend to themselves and to documents of
        inputs of as many tokens.
        """
        of_inputs = (row_tokens - self.inputs) // MAX_FILL_TOKENS
        of_targets = (target_tokens - self.targets) // MAX_FILL_TOKENS
        return type(self)(
            self.n_samples + of_inputs,
            self.inputs + of_inputs * MAX_FILL_TOKENS,
            self.input_pairs + of_inputs * MAX_FILL_TOKENS**2,
            self.targets + of_targets * MAX_FILL_TOKENS,
            self.target_pairs + of_targets * (2 * MAX_FILL_TOKENS**2),
        )


def packed_shapes(row_tokens: Sizes, sums: Sums, known: KnownRows) -> Shapes:
    """Equal rows by which packed micro-batches of a decoder-only model are looked up.

    Times and bytes depend on tokens T and on pairs P of tokens of one sample, which is the sum
    of squared lengths; T^2 / P rows of P / T tokens have as many of both. There are never more
    rows than samples, or than are known, nor shorter ones: then rows are fewer and longer,
    which have as many tokens but overestimate pairs. Documents that fill rows up count as samples
    where rows would otherwise be longer than is known.
    """
    n_rows = _input_rows(row_tokens, sums, sums.with_fill(row_tokens), known)
    return Shapes.padded(n_rows, row_tokens / n_rows, np.zeros_like(n_rows))


def packed_pair_shapes(
    row_tokens: Sizes, target_tokens: Sizes, sums: Sums, known: KnownRows
) -> Shapes:
    """Equal rows by which packed micro-batches of an encoder-decoder model are looked up.

    The encoder's parts depend on inputs and their pairs, as in a decoder-only model. Parts of the
    decoder depend on tokens T of targets, S of inputs, and pairs P of a target and what it attends
    to: T (T + S) / P rows have as many of all three. That is another number of rows.
    """
    filled = sums.with_fill(row_tokens, target_tokens)
    input_rows = _input_rows(row_tokens, sums, filled, known)
    wanted = filled.targets * ((filled.targets + filled.inputs) / filled.target_pairs)
    n_rows = _rows(wanted, target_tokens, np.inf, known)
    return Shapes(n_rows, row_tokens / n_rows, target_tokens / n_rows, input_rows)


def sliced_shapes(
    row_tokens: IntArray, spans: IntArray, other_pairs: int, known: KnownRows
) -> Shapes:
    """Rows with as many tokens and pairs as slices, which see all before them, and others have.

    As causal attention counts as all pairs of a sample, a slice has those up to its end less those
    up to its begin.

    Args:
        row_tokens: Length of every packed row, fill included, shape (n_slices,).
        spans: Begin and end of every slice in its sample, shape (n_slices, 2).
        other_pairs: Pairs of tokens of one sample behind the slice in its row.
        known: Rows that the cost model knows.
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


def _input_rows(tokens: Sizes, sums: Sums, filled: Sums, known: KnownRows) -> FloatArray:
    more = np.minimum(filled.n_samples, tokens / known.longest_tokens)
    n_samples = np.maximum(sums.n_samples, more)
    return _rows(tokens * (tokens / filled.input_pairs), tokens, n_samples, known)


def _rows(wanted: Sizes, tokens: Sizes, n_samples: Sizes | float, known: KnownRows) -> FloatArray:
    """The wanted numbers of rows, limited to what was measured."""
    most = np.minimum(np.minimum(n_samples, known.most), tokens / known.least_tokens)
    return np.asarray(np.maximum(np.minimum(wanted, most), 1.0))


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
    """Pairs of a chosen and a rejected token, which do not attend to each other; counted twice."""
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
    rows = ([microbatch.row_tokens], [microbatch.target_tokens])
    n_documents = len(inputs) + len(microbatch.branches)
    of_inputs = ([n_documents], [inputs.sum()], [inputs @ inputs - unseen_pairs(microbatch)])
    row_tokens, target_tokens = np.array(rows, np.float64)
    n_samples, n_inputs, pairs = np.array(of_inputs, np.float64)
    if not targets.size:
        shapes = packed_shapes(row_tokens, Sums(n_samples, n_inputs, pairs), known)
    else:
        of_targets = np.array([[targets.sum()], [targets @ (inputs + targets)]], np.float64)
        sums = Sums(n_samples, n_inputs, pairs, *of_targets)
        shapes = packed_pair_shapes(row_tokens, target_tokens, sums, known)
    return tuple(float(sizes[0]) for sizes in shapes)
