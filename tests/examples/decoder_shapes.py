"""Sizes of micro-batches of a decoder-only model."""

import numpy as np

from dynapipe_hpc.planner.cost.cost_model import IntArray, Shapes


def decoder_shapes(n_rows: IntArray, row_tokens: IntArray) -> Shapes:
    """Those without a target side."""
    return Shapes.padded(n_rows, row_tokens, np.zeros_like(row_tokens))
