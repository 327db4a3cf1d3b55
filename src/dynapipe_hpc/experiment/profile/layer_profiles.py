"""Layer profiles of a cost table, from measured stacks."""

import math
from collections.abc import Mapping, Sequence

import numpy as np

from dynapipe_hpc.architecture.boundary import Boundary
from dynapipe_hpc.architecture.part import LAYER
from dynapipe_hpc.architecture.t5 import DECODER, DECODER_SIDE, ENCODER
from dynapipe_hpc.data.microbatch import ExecutionMode
from dynapipe_hpc.experiment.config import ExperimentConfig
from dynapipe_hpc.experiment.profile.bench import NEAR_PAIRS, PAIRS
from dynapipe_hpc.experiment.profile.grid import ProfileGrid
from dynapipe_hpc.experiment.profile.separate_layers import (
    MEASURED,
    separate_layers,
    separate_pairs,
    separate_sides,
)
from dynapipe_hpc.experiment.rank.devices import dtype_of
from dynapipe_hpc.experiment.split_passes import kinds_with_halves
from dynapipe_hpc.planner.cost.cost_model import FloatArray, IntArray
from dynapipe_hpc.planner.cost.table.profile_table import QUANTITIES, LayerKey, LayerProfile


def layer_profiles(
    stacks: Mapping[str, FloatArray],
    grid: ProfileGrid,
    config: ExperimentConfig,
    mode: ExecutionMode,
) -> dict[LayerKey, LayerProfile]:
    """Derives the costs of layers from those of stacks, and puts them on the grid.

    Args:
        stacks: The columns `MEASURED` of the first micro-batches of the grid (for a decoder, of
            its pairs), shape (n_points, n_stacks, 5 or 7), by kind of layer; and `PAIRS` and
            `NEAR_PAIRS` of slices, if they were measured.
        grid: The grid on which they were measured.
        config: The model and its number of shards.
        mode: Layout and recomputation of the micro-batches.
    """
    n_shards, element_bytes = config.cluster.n_shards, dtype_of(config).itemsize
    weights = config.model.weights(n_shards)
    with_halves = kinds_with_halves(config, mode.recompute)
    profiles = {}
    for kind, costs in _separate(stacks, grid, config).items():
        of_pairs = kind in (DECODER, DECODER_SIDE)
        axes, places = _pairs_of(grid) if of_pairs else _rows_of(grid)
        names = MEASURED if kind in with_halves else QUANTITIES
        grids = {name: np.full([*map(len, axes)], np.nan) for name in names}
        for name, column in zip(names, costs.T, strict=False):
            grids[name][tuple(places[:, : len(costs)])] = column
        key = LayerKey(n_shards, mode.recompute.text, kind, mode.layout.text)
        parameters = weights[kind].n_numbers if kind in weights else 0
        pairs = _pair_times(stacks) if kind == LAYER else {}
        profiles[key] = LayerProfile(parameters * element_bytes, axes, **grids, **pairs)
    return profiles


def _pair_times(stacks: Mapping[str, FloatArray]) -> dict[str, FloatArray]:
    """Times of a layer per pair by their names in its profile; none if slices were not measured."""
    names = {PAIRS: "pair_ms", NEAR_PAIRS: "near_pair_ms"}
    times = {name: separate_pairs(stacks[kind]) for kind, name in names.items() if kind in stacks}
    return {"pair_ms": np.zeros(2), **times} if times else {}


def _separate(
    stacks: Mapping[str, FloatArray], grid: ProfileGrid, config: ExperimentConfig
) -> dict[str, FloatArray]:
    if LAYER in stacks:
        return separate_layers(stacks[LAYER])
    width, n_parts = config.model.hidden_size, config.cluster.n_stream_shards
    microbatches = grid.microbatches()[: len(stacks[ENCODER])]
    numbers = [math.prod(Boundary.ROWS.shape(m, width, n_parts)) for m in microbatches]
    boundary_bytes = dtype_of(config).itemsize * np.array(numbers)
    return separate_sides(stacks[ENCODER], stacks[DECODER], boundary_bytes)


def _rows_of(grid: ProfileGrid) -> tuple[tuple[IntArray, ...], IntArray]:
    """Axes of a grid, and the indices of its micro-batches on them, shape (2, n)."""
    axes = (np.array(grid.rows), np.array(grid.row_tokens))
    return axes, _places(axes, [(m.n_rows, m.row_tokens) for m in grid.microbatches()])


def _pairs_of(grid: ProfileGrid) -> tuple[tuple[IntArray, ...], IntArray]:
    """Axes and positions like `_rows_of`, with a third axis for target lengths."""
    axes = (np.array(grid.rows), np.array(grid.row_tokens), np.array(grid.row_tokens))
    sizes = [(m.n_rows, m.row_tokens, m.target_tokens) for m in grid.pairs()]
    return axes, _places(axes, sizes)


def _places(axes: Sequence[IntArray], sizes: Sequence[tuple[int, ...]]) -> IntArray:
    columns = np.array(sizes).T
    return np.stack([np.searchsorted(axis, c) for axis, c in zip(axes, columns, strict=True)])
