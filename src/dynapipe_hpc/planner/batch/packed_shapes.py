"""Equal rows by which packed micro-batches are looked up."""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from dynapipe_hpc.data.microbatch import Layout, MicroBatch
from dynapipe_hpc.planner.cost.cost_model import FloatArray, KnownRows, Shapes, Sizes


class PairSums(NamedTuple):
    """Sums over the samples of packed micro-batches of an encoder-decoder model.

    Arrays of shape (n_microbatches,). A sample has a positions of input and b of target.

    Attributes:
        n_samples: Number of samples.
        inputs: Sum of a.
        input_pairs: Sum of a^2: pairs of inputs of one sample.
        targets: Sum of b.
        target_pairs: Sum of b (a + b): pairs of a target and an input or target of its sample.
    """

    n_samples: Sizes
    inputs: Sizes
    input_pairs: Sizes
    targets: Sizes
    target_pairs: Sizes


def packed_shapes(tokens: Sizes, pairs: Sizes, n_samples: Sizes, known: KnownRows) -> Shapes:
    """Equal rows by which packed micro-batches of a decoder-only model are looked up.

    Times and bytes depend on tokens T and on pairs P of tokens of one sample, which is the sum
    of squared lengths; T^2 / P rows of P / T tokens have as many of both. There are never more
    rows than samples, or than are known, nor shorter ones: then rows are fewer and longer,
    which have as many tokens but overestimate pairs.

    Args:
        tokens: Length of every packed row, fill included.
        pairs: Sum of its squared lengths.
        n_samples: Number of its samples.
        known: Rows that the cost model knows.
    """
    n_rows = _rows(tokens * (tokens / pairs), tokens, n_samples, known)
    return Shapes.padded(n_rows, tokens / n_rows, np.zeros_like(n_rows))


def packed_pair_shapes(
    row_tokens: Sizes, target_tokens: Sizes, sums: PairSums, known: KnownRows
) -> Shapes:
    """Equal rows by which packed micro-batches of an encoder-decoder model are looked up.

    The encoder's parts depend on inputs and their pairs, as in a decoder-only model. Parts of the
    decoder depend on tokens T of targets, S of inputs, and pairs P of a target and what it attends
    to: T (T + S) / P rows have as many of all three. That is another number of rows.

    Args:
        row_tokens: Length of every packed row of inputs, fill included.
        target_tokens: Length of every packed row of targets, likewise.
        sums: Sums over their samples.
        known: Rows that the cost model knows.
    """
    tokens = np.asarray(row_tokens, np.float64)
    input_rows = _rows(tokens * (tokens / sums.input_pairs), tokens, sums.n_samples, known)
    wanted = sums.targets * ((sums.targets + sums.inputs) / sums.target_pairs)
    n_rows = _rows(wanted, target_tokens, np.inf, known)
    return Shapes(n_rows, row_tokens / n_rows, target_tokens / n_rows, input_rows)


def shapes_of(microbatches: Sequence[MicroBatch], known: KnownRows) -> Shapes:
    """Sizes of micro-batches of any layout.

    Args:
        microbatches: The micro-batches.
        known: Rows that the cost model knows.
    """
    each = [_sizes_of(microbatch, known) for microbatch in microbatches]
    return Shapes(*np.array(each).reshape(-1, len(Shapes._fields)).T)


def _rows(wanted: Sizes, tokens: Sizes, n_samples: Sizes | float, known: KnownRows) -> FloatArray:
    """Numbers of rows that have as many tokens, limited to what is known."""
    most = np.minimum(np.minimum(n_samples, known.most), tokens / known.least_tokens)
    return np.asarray(np.maximum(np.minimum(wanted, most), 1.0))


def _sizes_of(microbatch: MicroBatch, known: KnownRows) -> tuple[float, ...]:
    if microbatch.layout is not Layout.PACKED:
        n_rows = microbatch.n_rows
        return (n_rows, microbatch.row_tokens, microbatch.target_tokens, n_rows)
    inputs, targets = np.diff(microbatch.offsets), np.diff(microbatch.target_offsets)
    rows = ([microbatch.row_tokens], [microbatch.target_tokens])
    of_inputs = ([len(inputs)], [inputs.sum()], [inputs @ inputs])
    row_tokens, target_tokens = np.array(rows, np.float64)
    n_samples, n_inputs, pairs = np.array(of_inputs, np.float64)
    if not targets.size:
        shapes = packed_shapes(row_tokens, pairs, n_samples, known)
    else:
        of_targets = np.array([[targets.sum()], [targets @ (inputs + targets)]], np.float64)
        sums = PairSums(n_samples, n_inputs, pairs, *of_targets)
        shapes = packed_pair_shapes(row_tokens, target_tokens, sums, known)
    return tuple(float(sizes[0]) for sizes in shapes)
