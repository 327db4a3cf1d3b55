"""Tokens that pass through the parts of a model."""

from typing import NamedTuple

import numpy as np

from dynapipe_hpc import _kernels
from dynapipe_hpc.architecture.part import Amount, Side
from dynapipe_hpc.planner.cost.cost_model import FloatArray, Shapes


class Tokens(NamedTuple):
    """Tokens of micro-batches, padding included; arrays that broadcast to one shape."""

    own_tokens: FloatArray
    source: FloatArray
    pairs: FloatArray  # pairs of an own token and one that it attends to
    own_pairs: FloatArray  # pairs of own tokens of the same row
    square: FloatArray  # pairs of own tokens in a single row
    far_pairs: FloatArray  # pairs of own tokens of the same row that a window keeps apart
    masked_square: FloatArray  # like `square`, if the row is longer than the window

    @classmethod
    def from_shapes(cls, side: Side, shapes: Shapes, window: float = np.inf) -> "Tokens":
        """Tokens of a part on some side, shape (n_microbatches,); see `Part.window`."""
        if side is Side.INPUTS:  # whatever the targets
            shapes = shapes._replace(target_tokens=np.zeros(()))
        sizes = np.broadcast_arrays(*(np.asarray(of, np.float64) for of in shapes))
        counts = _kernels.token_counts(side, window, *(np.ravel(of) for of in sizes))
        return cls(*counts.T.reshape(-1, *sizes[0].shape))

    def times(self, amount: Amount) -> FloatArray:
        """Value of an amount for these tokens."""
        products = (of * per for of, per in zip(self, amount, strict=True) if per)
        return sum(products, start=np.zeros_like(self.own_tokens))
