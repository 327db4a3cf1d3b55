"""Costs of stages, from measurements of single layers."""

from collections.abc import Callable, Mapping
from typing import NamedTuple

import numpy as np

from dynapipe_hpc.planner.cost.cost_model import FloatArray, StageCosts
from dynapipe_hpc.planner.cost.monotone import Repaired, make_monotone
from dynapipe_hpc.planner.cost.table.profile_table import QUANTITIES, LayerProfile
from dynapipe_hpc.planner.cost.weight_gradients import SplitTimes

# Layers of a stage run one after the other and share what is only needed while they run.
SHARED = ("forward_transient_bytes", "backward_transient_bytes")


class StageGrids(NamedTuple):
    """Costs of stages on the points of a grid.

    Attributes:
        points: Shape (n_rows, n_lengths, n_target_lengths, n_stages, len(Cost)), without
            boundaries; infinite where a layer of the stage cannot run.
        repaired: Fraction of the measurements that were repaired.
    """

    points: FloatArray
    repaired: float


def stage_grids(
    layers: Mapping[str, LayerProfile],
    splits: Mapping[str, SplitTimes],
    counts: Mapping[str, FloatArray],
    repair: Callable[[FloatArray], Repaired] = make_monotone,
) -> StageGrids:
    """Sums of the layers of every stage, after repair of their measurements.

    Args:
        layers: Measured layers by kind, on three axes.
        splits: Times of split backward passes by kind, on the same axes.
        counts: Numbers of layers on every stage by kind, shape (n_stages,).
        repair: Function that removes the noise from the measurements of one kind and quantity.
    """
    repaired = {
        (kind, quantity): repair(layer.grid(quantity))
        for kind, layer in layers.items()
        for quantity in QUANTITIES
    }
    grids = {at: found.grid for at, found in repaired.items()}
    for kind, split in splits.items():
        backward = grids[kind, "backward_ms"]
        weights = np.fmin(split.weight_ms, backward)
        for quantity, times in (("weight_ms", weights), ("splitting_ms", split.splitting_ms)):
            grids[kind, quantity] = np.where(np.isinf(backward), np.inf, times)
    columns = {
        quantity: _on_stages({kind: grids[kind, quantity] for kind in layers}, counts, quantity)
        for quantity in (*QUANTITIES, *SplitTimes._fields)
    }
    n_changed = sum(found.n_changed for found in repaired.values())
    n_feasible = sum(int(np.isfinite(found.grid).sum()) for found in repaired.values())
    costs = StageCosts.of(**columns, boundary_bytes=np.zeros(()))
    return StageGrids(costs.table, n_changed / max(n_feasible, 1))


def _on_stages(
    grids: Mapping[str, FloatArray], counts: Mapping[str, FloatArray], quantity: str
) -> FloatArray:
    """All kinds of layers together, with the stages as last axis."""
    parts = [_part(grid, counts[kind], quantity) for kind, grid in grids.items()]
    together = np.maximum if quantity in SHARED else np.add
    total = parts[0]
    for part in parts[1:]:
        total = together(total, part)
    return total


def _part(grid: FloatArray, count: FloatArray, quantity: str) -> FloatArray:
    """One kind of layer; zero on stages that hold none."""
    factor = count.clip(max=1) if quantity in SHARED else count
    on_stages = np.zeros((*grid.shape, len(count)))
    held = count > 0
    on_stages[..., held] = grid[..., np.newaxis] * factor[held]
    return on_stages
