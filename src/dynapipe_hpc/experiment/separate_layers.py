"""From stacks of layers to single layers."""

from collections.abc import Mapping

import numpy as np

from dynapipe_hpc.experiment.profile_grid import ProfileGrid
from dynapipe_hpc.plan.model_shape import ModelShape
from dynapipe_hpc.planner.cost.analytic import BACKWARD_WORK, layer_estimates
from dynapipe_hpc.planner.cost.cost_model import FloatArray
from dynapipe_hpc.planner.cost.profile_table import QUANTITIES, LayerKey, LayerProfile
from dynapipe_hpc.planner.cost.stage_parts import EMBEDDING, HEAD, LAYER, STAGE

TIMES = slice(2)
SMALL_SHARE = 4


def separate_layers(stacks: FloatArray) -> dict[str, FloatArray]:
    """Tells a layer from what a stage takes besides its layers.

    A stack of n layers costs stage + n x layer, the embedding alone stage + embedding, the
    head alone stage + head. In time, the stage's part is the same however large the
    micro-batch is, and is taken from the smallest, where it is not lost in noise; the layer
    is then fitted to both stacks by least squares. Bytes are exact, so they are subtracted.

    Args:
        stacks: Shape (n_points, 4, 3), smallest micro-batches first: of the `STACKS`, forward
            ms, backward ms and stored bytes.

    Returns:
        By kind, an array of shape (n_points, 3), nowhere negative.
    """
    one, two, embedding, head = np.moveaxis(stacks, 1, 0)
    stage = 2 * one - two
    n_small = 1 + len(stage) // SMALL_SHARE
    stage[:, TIMES] = np.median(stage[:n_small, TIMES], axis=0)
    stage = np.maximum(stage, 0)
    parts = {
        STAGE: stage,
        LAYER: ((one - stage) + 2 * (two - stage)) / 5,
        EMBEDDING: embedding - stage,
        HEAD: head - stage,
    }
    return {kind: np.maximum(costs, 0) for kind, costs in parts.items()}


def layer_profiles(
    parts: Mapping[str, FloatArray], grid: ProfileGrid, shape: ModelShape, element_bytes: int
) -> dict[LayerKey, LayerProfile]:
    """Puts the parts on the grid; transient memory, which is not measured, is estimated.

    Args:
        parts: By kind, (n_points, 3): forward ms, backward ms and stored bytes of the first
            micro-batches of the grid.
        grid: Where they were measured.
        shape: The model.
        element_bytes: Size of one number of an activation.
    """
    microbatches = grid.microbatches()[: len(parts[LAYER])]
    rows = np.searchsorted(grid.rows, [m.n_rows for m in microbatches])
    lengths = np.searchsorted(grid.row_tokens, [m.row_tokens for m in microbatches])
    tokens = np.array([m.padded_tokens for m in microbatches])
    estimates = layer_estimates(shape, element_bytes)
    profiles = {}
    for kind, costs in parts.items():
        estimate = estimates.get(kind)
        transient = tokens * (estimate.transient_bytes if estimate else 0)
        grids = np.full((len(QUANTITIES), len(grid.rows), len(grid.row_tokens)), np.nan)
        grids[:, rows, lengths] = [*costs.T, transient, BACKWARD_WORK * transient]
        key = LayerKey(tensor_parallel=1, recompute="none", kind=kind)
        axes = (np.array(grid.rows), np.array(grid.row_tokens))
        profiles[key] = LayerProfile(estimate.weight_bytes if estimate else 0, axes, *grids)
    return profiles
