"""How the samples of an iteration form micro-batches."""

from collections.abc import Sequence
from typing import Protocol

from dynapipe_hpc.data.microbatch import MicroBatch
from dynapipe_hpc.data.sample import Sample
from dynapipe_hpc.plan.cluster import Cluster
from dynapipe_hpc.planner.cost.cost_model import CostModel


class BatchRule(Protocol):
    """Groups samples into micro-batches.

    Contract: every sample exactly once; no row longer than its micro-batch's; every
    micro-batch fits the memory of every stage on its own, or a named error.
    """

    def __call__(
        self, samples: Sequence[Sample], cost: CostModel, cluster: Cluster
    ) -> list[MicroBatch]:
        """Groups the samples of all replicas.

        Args:
            samples: In order of arrival, at least one.
            cost: Predicts time and memory of a candidate micro-batch.
            cluster: What runs them.

        Raises:
            DoesNotFitError: A sample or micro-batch needs more memory than a stage has.
            NotMeasuredError: The cost model does not know what one costs.
        """
        ...
