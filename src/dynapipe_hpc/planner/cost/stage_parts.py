"""What a pipeline stage is made of."""

import numpy as np

from dynapipe_hpc.architecture.boundary import Boundary
from dynapipe_hpc.plan.model_shape import ModelShape
from dynapipe_hpc.planner.cost.cost_model import FloatArray

STAGE = "stage"
"""Kind of what a pass through a stage takes besides its parts."""


def parts_of_stages(shape: ModelShape, n_stages: int) -> dict[str, FloatArray]:
    """Parts of every kind on every stage, see `Architecture.held`; `STAGE` is once on each.

    Returns:
        By kind, an array of shape (n_stages,).
    """
    held = [shape.parts_of_stage(stage, n_stages) for stage in range(n_stages)]
    counts = {kind: np.array([float(parts[kind]) for parts in held]) for kind in held[0]}
    return {**counts, STAGE: np.ones(n_stages)}


def boundary_sizes(shape: ModelShape, n_stages: int) -> FloatArray:
    """How many numbers per token a stage hands to the next one.

    Returns:
        Shape (n_stages, 2): per input token (or token of a decoder-only model), and per target
        token.
    """
    sizes = np.zeros((n_stages, 2))
    sizes[:-1, 0] = shape.hidden_size
    for stage in range(n_stages - 1):
        boundary = shape.architecture.boundary(shape.layers_of_stage(stage, n_stages))
        sizes[stage, 1] = shape.hidden_size if boundary is Boundary.PAIR else 0
    return sizes
