"""Memory of the keys and values of sliced samples."""

import numpy as np

from dynapipe_hpc.architecture.model_shape import ModelShape
from dynapipe_hpc.architecture.placement import Placement
from dynapipe_hpc.planner.cost.cost_model import FloatArray, SliceMemory

SUM_BYTES = 4
"""Least size of a number in which gradients of keys and values add up."""


def slice_memory(
    shape: ModelShape, placement: Placement, n_shards: int, *, element_bytes: int
) -> SliceMemory:
    """Memory of the slices of a sample on every stage."""
    n_layers = np.array([float(len(layers)) for layers in placement.layers])

    def on_stages(width: int, bytes_each: int) -> FloatArray:
        return n_layers * (width / n_shards * bytes_each)

    return SliceMemory(
        kept=on_stages(shape.cache_width, element_bytes),
        sums=on_stages(shape.cache_width, max(element_bytes, SUM_BYTES)),
        spared=on_stages(shape.spared_width, element_bytes),
    )
