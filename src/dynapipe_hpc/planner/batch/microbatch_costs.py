"""The costs of micro-batches that are already formed."""

from collections.abc import Sequence

import numpy as np

from dynapipe_hpc.data.microbatch import MicroBatch, Recompute
from dynapipe_hpc.planner.cost.cost_model import CostModel, Shapes, StageCosts


def microbatch_costs(microbatches: Sequence[MicroBatch], cost: CostModel) -> StageCosts:
    """Costs of micro-batches, each in its own mode, in the given order."""
    shapes = Shapes.of(microbatches, cost.known_rows)
    modes = np.array([m.recompute for m in microbatches], dtype=np.int64)
    of_mode = [(Recompute(mode), np.flatnonzero(modes == mode)) for mode in np.unique(modes)]
    parts = [cost.stage_costs(shapes.take(at), mode) for mode, at in of_mode]
    place = np.argsort(np.concatenate([at for _, at in of_mode]))
    return StageCosts.joined(parts).take(place)
