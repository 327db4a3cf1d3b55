"""Parts of pipeline stages, and the sizes of the boundaries between them."""

import numpy as np

from dynapipe_hpc.architecture.boundary import Boundary
from dynapipe_hpc.architecture.placement import Placement
from dynapipe_hpc.plan.model_shape import ModelShape
from dynapipe_hpc.planner.cost.cost_model import FloatArray

STAGE = "stage"
"""Kind of part that stands for what a pass takes besides the parts of a stage."""


def parts_of_stages(shape: ModelShape, placement: Placement) -> dict[str, FloatArray]:
    """Number of parts of every kind on every stage; `STAGE` is once on each.

    Returns:
        By kind, an array of shape (n_stages,).
    """
    held = placement.parts(shape.architecture)
    counts = {kind: np.array([float(parts[kind]) for parts in held]) for kind in held[0]}
    return {**counts, STAGE: np.ones(placement.n_stages)}


def boundary_sizes(shape: ModelShape, placement: Placement) -> FloatArray:
    """Numbers per token that a stage hands to the next one.

    Returns:
        Shape (n_stages, 2): per input token (or token of a decoder-only model), and per target
        token.
    """
    of_pairs = [each is Boundary.PAIR for each in placement.boundaries(shape.architecture)]
    sizes: FloatArray = shape.hidden_size * np.stack([np.ones(placement.n_stages), of_pairs], 1)
    sizes[-1] = 0
    return sizes
