"""Checks of the numbers of a cost table, wherever they come from."""

from collections.abc import Iterator

import numpy as np
import numpy.typing as npt

from dynapipe_hpc.data.errors import InputError, quoted
from dynapipe_hpc.planner.cost.table.profile_table import (
    HALVES,
    LayerKey,
    LayerProfile,
    ProfileTable,
)

LARGEST = 1e18
_AXES = ("rows", "row_tokens", "target_tokens")


def check_table(table: ProfileTable) -> None:
    """Refuses numbers that cannot have been measured: kernels and plans rely on the others.

    Raises:
        InputError: Names the layer, the quantity and the value.
    """
    for name, value, least in _numbers(table):
        if not isinstance(value, int | float) or not least <= value <= LARGEST:
            raise InputError(f"{name} is {quoted(value)}, not a number >= {least:g}")
    for key, layer in table.layers.items():
        _check_axes(key, layer)
        for quantity in layer.grids:
            _check_grid(key, layer, quantity)
        for name, times in layer.pair_times.items():
            if times.shape != (2,) or not np.all((times >= 0) & (times <= LARGEST)):
                raise InputError(f"{key}: {name} is {quoted(times)}, not two numbers >= 0")


def _numbers(table: ProfileTable) -> Iterator[tuple[str, object, float]]:
    """Names and values, and the least each may be."""
    yield "element_bytes", table.element_bytes, 1
    yield "state_factor", table.state_factor, 1
    for name, value in table.update._asdict().items():
        yield name, value, 0
    for key, layer in table.layers.items():
        yield f"{key}: tensor_parallel", key.tensor_parallel, 1
        yield f"{key}: parameter_bytes", layer.parameter_bytes, 0


def _check_axes(key: LayerKey, layer: LayerProfile) -> None:
    for name, axis in zip(_AXES, layer.axes, strict=False):
        if axis.ndim != 1 or not axis.size or axis[0] < 1 or np.any(axis[1:] <= axis[:-1]):
            raise InputError(f"{key}: {name} are not ascending from 1 or more: {quoted(axis)}")
        if axis[-1] > 2**31 - 1:
            raise InputError(f"{key}: {name} reach {axis[-1]}, which is no size")


def _check_grid(key: LayerKey, layer: LayerProfile, quantity: str) -> None:
    grid = layer.grid(quantity)
    if grid.shape != (shape := tuple(map(len, layer.axes))):
        raise InputError(f"{key}: {quantity} has shape {grid.shape}, but the axes {shape}")
    wrong = ~np.isnan(grid) & ~((grid >= 0) & (grid <= LARGEST))
    if wrong.any():
        place = _first(wrong)
        raise InputError(f"{key}: {quantity}{list(place)} is {grid[place]:g}, not a number >= 0")
    missing = np.isnan(grid) & ~np.isnan(layer.forward_ms)
    if missing.any() and quantity in ("backward_ms", *HALVES):
        raise InputError(f"{key}: {quantity}{list(_first(missing))} is missing, forward_ms is not")
    if np.isnan(grid).all() and quantity == "forward_ms":
        raise InputError(f"{key}: holds no measurement of the layer")


def _first(flags: npt.NDArray[np.bool_]) -> tuple[int, ...]:
    return tuple(int(i) for i in np.argwhere(flags)[0])
