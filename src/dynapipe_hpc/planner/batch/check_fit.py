"""Memory check of micro-batches that were formed without one."""

from collections.abc import Sequence

import numpy as np

from dynapipe_hpc.data.microbatch import MicroBatch
from dynapipe_hpc.plan.cluster import Cluster
from dynapipe_hpc.planner.batch.memory import activation_room_bytes, fits, misfit_error
from dynapipe_hpc.planner.batch.microbatch_costs import microbatch_costs
from dynapipe_hpc.planner.cost.cost_model import CostModel

FEWER_ROWS = "lower planner.batch.rows_per_microbatch or data.max_tokens"
FEWER_TOKENS = "lower planner.batch.tokens_per_microbatch or data.max_tokens"


def check_fit(
    microbatches: Sequence[MicroBatch], cost: CostModel, cluster: Cluster, way_out: str
) -> None:
    """Checks that micro-batches fit into memory.

    Raises:
        DoesNotFitError, NotMeasuredError: One does not; the message ends with the remedy.
    """
    costs = microbatch_costs(microbatches, cost)
    misfits = np.flatnonzero(~fits(costs, activation_room_bytes(cost, cluster)))
    if misfits.size:
        largest = microbatches[misfits[0]]
        targets = f" + {largest.target_tokens}" if largest.target_tokens else ""
        raise misfit_error(
            f"a micro-batch of {largest.n_rows} x {largest.row_tokens}{targets} tokens",
            costs.take(misfits[:1]),
            cost,
            cluster,
            way_out=way_out,
        )
