"""Tokens that pass through the parts of a model."""

from typing import NamedTuple

import numpy as np

from dynapipe_hpc.architecture.amount import Amount
from dynapipe_hpc.architecture.part import Side
from dynapipe_hpc.planner.cost.cost_model import FloatArray, Shapes


class Tokens(NamedTuple):
    """Tokens of micro-batches, padding included; arrays that broadcast to one shape.

    Attributes:
        own: Tokens that pass through a part.
        source: Tokens of the other side, to which their own attend as well.
        pairs: Pairs of an own token and one that it attends to.
    """

    own: FloatArray
    source: FloatArray
    pairs: FloatArray

    @classmethod
    def of(cls, side: Side, shapes: Shapes) -> "Tokens":
        """Tokens of a part on some side, shape (n_microbatches,)."""
        rows, inputs, targets = (np.asarray(sizes, dtype=np.float64) for sizes in shapes)
        nothing = np.zeros_like(rows)
        match side:
            case Side.INPUTS:
                return cls(rows * inputs, nothing, rows * inputs**2)
            case Side.TARGETS:
                return cls(rows * targets, rows * inputs, rows * targets * (targets + inputs))
            case Side.LONGER:
                return cls(rows * np.maximum(inputs, targets), nothing, nothing)

    def times(self, amount: Amount) -> FloatArray:
        """The quantity that an amount becomes for these tokens."""
        quantity: FloatArray = (
            self.own * amount.per_own
            + self.source * amount.per_source
            + self.pairs * amount.per_pair
        )
        return quantity
