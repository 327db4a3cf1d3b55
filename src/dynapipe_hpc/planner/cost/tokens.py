"""Tokens that pass through the parts of a model."""

from typing import NamedTuple

import numpy as np

from dynapipe_hpc.architecture.part import Amount, Side
from dynapipe_hpc.planner.cost.cost_model import FloatArray, Shapes


class Tokens(NamedTuple):
    """Tokens of micro-batches, padding included; arrays that broadcast to one shape.

    `pairs`: Pairs of an own token and one that it attends to. `own_pairs`: Pairs of own tokens of
    the same row. `square`: Pairs of own tokens of one row. `far_pairs`: Pairs of own tokens of the
    same row that a window keeps apart. `masked_square`: Pairs of own tokens of one row, where it is
    longer than the window.
    """

    own_tokens: FloatArray
    source: FloatArray
    pairs: FloatArray
    own_pairs: FloatArray
    square: FloatArray
    far_pairs: FloatArray
    masked_square: FloatArray

    @classmethod
    def from_shapes(cls, side: Side, shapes: Shapes, window: float = np.inf) -> "Tokens":
        """Tokens of a part on some side, shape (n_microbatches,); see `Part.window`."""
        rows, inputs, targets, _ = (np.asarray(sizes, dtype=np.float64) for sizes in shapes)
        nothing = np.zeros_like(rows)
        match side:
            case Side.INPUTS:
                lengths = np.asarray(shapes.input_row_tokens, np.float64)
                square = lengths**2
                pairs = shapes.input_rows * square
                # A slice is less than one row, whose length is that of all before it and up to it.
                is_slice = shapes.input_rows < np.ones(())
                before = np.where(is_slice, lengths * (1 - shapes.input_rows) / 2, 0)
                far_pairs = np.where(is_slice, 1.0, shapes.input_rows) * (
                    np.maximum(lengths - before - window, 0) ** 2
                    - np.maximum(before - window, 0) ** 2
                )
                masked_square = np.where((lengths > window) & ~is_slice, square, 0)
                return cls(rows * inputs, nothing, pairs, pairs, square, far_pairs, masked_square)
            case Side.TARGETS:
                own_tokens, square = rows * targets, targets**2
                return cls(
                    own_tokens,
                    rows * inputs,
                    own_tokens * (targets + inputs),
                    rows * square,
                    square,
                    nothing,
                    nothing,
                )
            case Side.LONGER:
                return cls(rows * np.maximum(inputs, targets), *[nothing] * 6)

    def times(self, amount: Amount) -> FloatArray:
        """Value of an amount for these tokens."""
        products = (of * per for of, per in zip(self, amount, strict=True) if per)
        return sum(products, start=np.zeros_like(self.own_tokens))
