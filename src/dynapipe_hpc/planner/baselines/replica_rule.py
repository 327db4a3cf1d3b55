"""Rules that also say which replica runs a micro-batch, and when."""

from collections.abc import Sequence
from typing import Protocol

from dynapipe_hpc.data.microbatch import MicroBatch
from dynapipe_hpc.data.sample import Sample
from dynapipe_hpc.plan.cluster import Cluster
from dynapipe_hpc.planner.cost.cost_model import CostModel


class ReplicaRule(Protocol):
    """A rule that groups samples into the micro-batches of every replica.

    Contract: that of `BatchRule`, except that micro-batches are assigned and in order.
    """

    def __call__(
        self, samples: Sequence[Sample], cost: CostModel, cluster: Cluster
    ) -> list[list[MicroBatch]]:
        """Groups the samples of all replicas.

        Args:
            samples: Samples in order of arrival, at least one.
            cost: Cost model of micro-batches, of whose modes the first is used.
            cluster: The cluster that runs them.

        Returns:
            Per replica its micro-batches, in the order in which they enter the pipeline.

        Raises:
            DoesNotFitError: A micro-batch needs more memory than a stage has.
            NotMeasuredError: The cost model does not know what one costs.
            TooFewMicroBatchesError: A replica would have nothing to do.
        """
        ...
