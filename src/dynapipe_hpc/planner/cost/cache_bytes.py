"""Memory of the keys and values of sliced samples."""

import numpy as np

from dynapipe_hpc.architecture.model_shape import ModelShape
from dynapipe_hpc.architecture.placement import Placement
from dynapipe_hpc.planner.cost.cost_model import FloatArray

SUM_BYTES = 4
"""Least size of a number in which gradients of keys and values add up."""


def cache_bytes(
    shape: ModelShape, placement: Placement, n_shards: int, *, element_bytes: int
) -> FloatArray:
    """Bytes of keys, values and sums of their gradients per token, shape (n_stages,).

    Args:
        shape: The model.
        placement: The layers of every stage.
        n_shards: Ranks that layers are cut over.
        element_bytes: Size of a number of an activation.
    """
    n_layers = np.array([float(len(layers)) for layers in placement.layers])
    bytes_each = element_bytes + max(element_bytes, SUM_BYTES)
    return n_layers * (shape.cache_width / n_shards * bytes_each)
