"""From stacks of layers to single layers."""

from collections.abc import Mapping, Sequence

import numpy as np

from dynapipe_hpc.data.microbatch import Recompute
from dynapipe_hpc.experiment.assemble import dtype_of
from dynapipe_hpc.experiment.config import ExperimentConfig
from dynapipe_hpc.experiment.profile_grid import ProfileGrid
from dynapipe_hpc.planner.cost.cost_model import FloatArray, IntArray
from dynapipe_hpc.planner.cost.profile_table import QUANTITIES, LayerKey, LayerProfile
from dynapipe_hpc.planner.cost.stage_parts import (
    DECODER,
    EMBEDDING,
    HEAD,
    LAYER,
    STAGE,
    parameters_of,
)

TIMES, ADDING_UP, TRANSIENT = slice(2), slice(3), slice(3, 5)  # of the quantities
SMALL_SHARE = 4


def separate_layers(stacks: FloatArray) -> dict[str, FloatArray]:
    """Tells a layer from what a stage takes besides its layers.

    A stack of n layers costs stage + n x layer, the embedding alone stage + embedding, the
    head alone stage + head. In time, the stage's part is the same however large the
    micro-batch is, and is taken from the smallest, where it is not lost in noise; the layer
    is then fitted to both stacks by least squares. Bytes are exact, so they are subtracted.
    Transient bytes do not add up: a stage needs as much as the largest of its parts.

    Args:
        stacks: Shape (n_points, 4, 5), smallest micro-batches first: of the `STACKS`, the
            `QUANTITIES`.

    Returns:
        By kind, an array of the shape (n_points, 5), nowhere negative.
    """
    adding_up = _separate(stacks[..., ADDING_UP])
    one, two, embedding, head = np.moveaxis(stacks[..., TRANSIENT], 1, 0)
    largest = {LAYER: np.maximum(one, two), EMBEDDING: embedding, HEAD: head}
    nothing = np.zeros_like(one)
    return {
        kind: np.hstack([costs, largest.get(kind, nothing)]) for kind, costs in adding_up.items()
    }


def _separate(stacks: FloatArray) -> dict[str, FloatArray]:
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


def separate_decoder(stacks: FloatArray) -> FloatArray:
    """The costs of one layer of a decoder.

    Args:
        stacks: Shape (n_points, 2, 5), smallest micro-batches first: of one and two layers.

    Returns:
        Shape (n_points, 5), nowhere negative.
    """
    one, two = np.moveaxis(stacks, 1, 0)
    nothing = np.zeros_like(one)
    alone = _separate(np.stack([one, two, nothing, nothing], axis=1)[..., ADDING_UP])[LAYER]
    largest = np.maximum(one, two)[:, TRANSIENT]
    return np.hstack([alone, largest])


def layer_profiles(
    parts: Mapping[str, FloatArray],
    grid: ProfileGrid,
    config: ExperimentConfig,
    recompute: Recompute,
) -> dict[LayerKey, LayerProfile]:
    """Puts the parts on the grid.

    Args:
        parts: By kind, the `QUANTITIES` of the first micro-batches of the grid, (n_points, 5);
            of a decoder, of the first of its pairs.
        grid: Where they were measured.
        config: The model, and over how many shards its layers were cut.
        recompute: Of the micro-batches.
    """
    n_shards, element_bytes = config.cluster.n_shards, dtype_of(config).itemsize
    parameters = parameters_of(config.model, n_shards)
    profiles = {}
    for kind, costs in parts.items():
        axes, places = _pairs_of(grid) if kind == DECODER else _rows_of(grid)
        grids = np.full((len(QUANTITIES), *map(len, axes)), np.nan)
        grids[:, *places[:, : len(costs)]] = costs.T
        key = LayerKey(n_shards, recompute.text, kind)
        profiles[key] = LayerProfile(parameters.get(kind, 0) * element_bytes, axes, *grids)
    return profiles


def _rows_of(grid: ProfileGrid) -> tuple[tuple[IntArray, ...], IntArray]:
    """The axes of a grid, and where on them its micro-batches are, shape (2, n)."""
    axes = (np.array(grid.rows), np.array(grid.row_tokens))
    return axes, _places(axes, [(m.n_rows, m.row_tokens) for m in grid.microbatches()])


def _pairs_of(grid: ProfileGrid) -> tuple[tuple[IntArray, ...], IntArray]:
    """As `_rows_of` with a third axis, of targets."""
    axes = (np.array(grid.rows), np.array(grid.row_tokens), np.array(grid.row_tokens))
    sizes = [(m.n_rows, m.row_tokens, m.target_tokens) for m in grid.pairs()]
    return axes, _places(axes, sizes)


def _places(axes: Sequence[IntArray], sizes: Sequence[tuple[int, ...]]) -> IntArray:
    columns = np.array(sizes).T
    return np.stack([np.searchsorted(axis, c) for axis, c in zip(axes, columns, strict=True)])
