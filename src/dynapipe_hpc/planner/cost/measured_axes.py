"""Common axes of measured layers: sizes of the micro-batches that they were measured with."""

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from dynapipe_hpc.architecture.part import HEAD
from dynapipe_hpc.architecture.t5 import DECODER, DECODER_SIDE
from dynapipe_hpc.data.errors import InputError
from dynapipe_hpc.planner.cost.cost_model import FloatArray, IntArray
from dynapipe_hpc.planner.cost.table.profile_table import HALVES, QUANTITIES, LayerProfile

Axes = tuple[IntArray, IntArray, IntArray]
ROWS, ROW_TOKENS, TARGET_TOKENS = range(3)
NO_TARGET = np.zeros(1, np.int64)
NO_POINTS = np.zeros(0, np.int64)
OF_PAIRS = (DECODER, DECODER_SIDE)  # depend on the lengths of inputs and of targets


def common_axes(layers: Mapping[str, LayerProfile], path: Path) -> Axes:
    """Axes of rows, tokens per row and target tokens; in decoder-only models the last is just 0."""
    entries: dict[int, tuple[str, IntArray]] = {TARGET_TOKENS: ("", NO_TARGET)}
    if DECODER in layers:
        entries = {}
    for kind, layer in layers.items():
        for place, axis in zip(_places(kind, layers), layer.axes, strict=True):
            other, known = entries.setdefault(place, (kind, axis))
            if not np.array_equal(axis, known):
                raise InputError(
                    f"{path}: '{kind}' was measured with other rows or lengths than '{other}'; "
                    "measure them together with 'dynapipe-hpc profile'"
                )
    return entries[ROWS][1], entries[ROW_TOKENS][1], entries[TARGET_TOKENS][1]


def on_three_axes(layers: Mapping[str, LayerProfile]) -> dict[str, LayerProfile]:
    """The layers with grids of three dimensions: length 1 along sizes that do not change costs."""
    return {kind: _spread(layer, _places(kind, layers)) for kind, layer in layers.items()}


def depends_on_targets(kind: str, layers: Mapping[str, LayerProfile]) -> bool:
    """Whether costs of a kind of layer depend on target tokens."""
    return TARGET_TOKENS in _places(kind, layers)


def _places(kind: str, layers: Mapping[str, LayerProfile]) -> tuple[int, ...]:
    if kind in OF_PAIRS:
        return (ROWS, ROW_TOKENS, TARGET_TOKENS)
    return (ROWS, TARGET_TOKENS if kind == HEAD and DECODER in layers else ROW_TOKENS)


def _spread(layer: LayerProfile, places: tuple[int, ...]) -> LayerProfile:
    missing = tuple({ROWS, ROW_TOKENS, TARGET_TOKENS}.difference(places))
    names = (*QUANTITIES, *HALVES)
    known = {name: grid for name, grid in layer.grids.items() if name in names}
    grids: dict[str, Any] = {name: np.expand_dims(grid, missing) for name, grid in known.items()}
    return replace(layer, **grids)


def at_points(grid: FloatArray, axes: Axes, points_of_axes: Axes) -> FloatArray:
    """Values of a grid at the points of other axes; NaN at points that the grid does not have."""
    places, known = [], []
    for n, axis, points in zip(grid.shape, axes, points_of_axes, strict=True):
        entries = np.searchsorted(axis, points).clip(max=len(axis) - 1)
        places.append(entries if n > 1 else np.zeros(1, np.intp))
        known.append(axis[entries] == points if n > 1 else np.ones(1, np.bool_))
    rows, row_tokens, target_tokens = known
    is_known = rows[:, None, None] & row_tokens[:, None] & target_tokens
    return np.where(is_known, grid[np.ix_(*places)], np.nan)
