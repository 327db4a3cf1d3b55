"""Interface of the ways in which baselines group samples, and what they share."""

from collections.abc import Sequence
from typing import Protocol

import numpy as np

from dynapipe_hpc.data.microbatch import MicroBatch
from dynapipe_hpc.data.sample import Sample
from dynapipe_hpc.plan.cluster import Cluster
from dynapipe_hpc.planner.batch.memory import activation_room_bytes, fits, misfit_error
from dynapipe_hpc.planner.batch.microbatch_costs import microbatch_costs
from dynapipe_hpc.planner.batch.replicas import balance_replicas
from dynapipe_hpc.planner.cost.cost_model import CostModel

FEWER_ROWS = "lower planner.batch.rows_per_microbatch or data.max_tokens"
FEWER_TOKENS = "lower planner.batch.tokens_per_microbatch or data.max_tokens"


class Grouping(Protocol):
    """A way to group samples into the micro-batches of every replica.

    Contract: every sample occurs exactly once; no sample is longer than the rows of its
    micro-batch; every micro-batch fits on every stage alone, or a named error is raised.
    """

    def __call__(
        self, samples: Sequence[Sample], cost: CostModel, cluster: Cluster, setting: int, /
    ) -> list[list[MicroBatch]]:
        """Groups the samples of all replicas.

        Raises:
            DoesNotFitError: A micro-batch needs more memory than a stage has.
            NotMeasuredError: The cost model does not know what one costs.
            TooFewMicroBatchesError: A replica would have nothing to do.
        """
        ...


def check_fit(
    microbatches: Sequence[MicroBatch], cost: CostModel, cluster: Cluster, way_out: str
) -> None:
    """Checks that micro-batches fit into memory.

    Raises `DoesNotFitError` or `NotMeasuredError`: One does not; the message ends with the remedy.
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


def on_replicas(
    microbatches: Sequence[MicroBatch], cost: CostModel, cluster: Cluster, way_out: str
) -> list[list[MicroBatch]]:
    """Micro-batches that fit, balanced over the replicas."""
    check_fit(microbatches, cost, cluster, way_out)
    replicas = balance_replicas(microbatches, cost, cluster.n_replicas)
    return [[microbatches[i] for i in replica] for replica in replicas]
