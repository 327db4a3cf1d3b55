"""Rules by which the samples of an iteration form micro-batches."""

from collections.abc import Sequence
from typing import Protocol

from dynapipe_hpc.data.microbatch import MicroBatch
from dynapipe_hpc.data.sample import Sample
from dynapipe_hpc.plan.cluster import Cluster
from dynapipe_hpc.planner.cost.cost_model import CostModel


class BatchRule(Protocol):
    """A rule that groups samples into micro-batches.

    Contract: every sample occurs exactly once; no sample is longer than the rows of its
    micro-batch; every micro-batch fits on every stage alone, or a named error is raised.
    """

    def __call__(
        self, samples: Sequence[Sample], cost: CostModel, cluster: Cluster
    ) -> list[MicroBatch]:
        """Groups the samples of all replicas.

        Args:
            samples: Samples in order of arrival, at least one.
            cost: Cost model of micro-batches.
            cluster: The cluster that runs them.

        Raises:
            DoesNotFitError: A sample or micro-batch needs more memory than a stage has.
            NotMeasuredError: The cost model does not know what one costs.
        """
        ...
