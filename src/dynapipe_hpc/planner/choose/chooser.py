"""Interface of rules that choose the plan of an iteration."""

from collections.abc import Sequence
from typing import Protocol

from dynapipe_hpc.data.sample import Sample
from dynapipe_hpc.planner.choose.choice import Choice


class Chooser(Protocol):
    """Makes plans of an iteration to choose from, for one cost model and one cluster.

    Contract: every plan runs every sample once, within memory; the same samples give the same
    plans.
    """

    def choose(self, samples: Sequence[Sample]) -> Choice:
        """Forms micro-batches and schedules them.

        Args:
            samples: A global batch, in order of arrival.

        Raises:
            DoesNotFitError, NotMeasuredError: A sample or micro-batch cannot run.
            InfeasibleScheduleError: No schedule keeps within memory. If all attempts fail, the
                returned choice may raise it instead, when asked for its best plan.
            TooFewMicroBatchesError: A replica would have nothing to do.
        """
        ...
