"""From measurements of single layers to the costs of stages."""

from collections.abc import Callable, Mapping

import numpy as np

from dynapipe_hpc.planner.cost.cost_model import FloatArray
from dynapipe_hpc.planner.cost.monotone import Repaired, make_monotone
from dynapipe_hpc.planner.cost.profile_table import QUANTITIES, LayerProfile

# Layers of a stage run one after the other and share what is only needed while they run.
SHARED = ("forward_transient_bytes", "backward_transient_bytes")


def stage_grids(
    layers: Mapping[str, LayerProfile],
    counts: Mapping[str, FloatArray],
    repair: Callable[[FloatArray], Repaired] = make_monotone,
) -> tuple[FloatArray, float]:
    """Adds up the layers of every stage, after repairing their measurements.

    Args:
        layers: By kind, all measured on the same points.
        counts: By kind, how many of it every stage holds, shape (n_stages,).
        repair: Takes the noise out of the measurements of one kind and quantity.

    Returns:
        Array of shape (n_quantities, n_rows, n_lengths, n_stages), infinite where a layer of
        the stage cannot run; and the share of measurements that were repaired.
    """
    by_quantity = []
    n_changed = n_feasible = 0
    for quantity in QUANTITIES:
        repaired = {kind: repair(layer.grid(quantity)) for kind, layer in layers.items()}
        n_changed += sum(grid.n_changed for grid in repaired.values())
        n_feasible += sum(int(np.isfinite(grid.grid).sum()) for grid in repaired.values())
        parts = [_on_stages(repaired[kind].grid, count, quantity) for kind, count in counts.items()]
        by_quantity.append(np.max(parts, axis=0) if quantity in SHARED else np.sum(parts, axis=0))
    return np.stack(by_quantity), n_changed / max(n_feasible, 1)


def _on_stages(grid: FloatArray, count: FloatArray, quantity: str) -> FloatArray:
    """Shape (n_rows, n_lengths, n_stages); zero on stages without the layer."""
    factor = count.clip(max=1) if quantity in SHARED else count
    on_stages = np.zeros((*grid.shape, len(count)))
    held = count > 0
    on_stages[..., held] = grid[..., np.newaxis] * factor[held]
    return on_stages
