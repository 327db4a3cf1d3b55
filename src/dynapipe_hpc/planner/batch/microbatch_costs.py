"""The costs of micro-batches that are already formed."""

from collections.abc import Sequence

import numpy as np

from dynapipe_hpc.data.microbatch import MicroBatch
from dynapipe_hpc.planner.cost.cost_model import CostModel, StageCosts


def microbatch_costs(microbatches: Sequence[MicroBatch], cost: CostModel) -> StageCosts:
    """Looks up what each micro-batch costs, in the given order."""
    return cost.stage_costs(
        np.array([m.n_rows for m in microbatches], dtype=np.int64),
        np.array([m.row_tokens for m in microbatches], dtype=np.int64),
    )
