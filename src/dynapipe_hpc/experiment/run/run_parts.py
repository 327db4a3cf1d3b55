"""Parts of a run beside training; a part that is off does nothing."""

from dataclasses import dataclass, replace

from dynapipe_hpc.experiment.run.checkpoints import Checkpoints
from dynapipe_hpc.experiment.run.evaluations import Evaluations, NoEvaluations
from dynapipe_hpc.experiment.run.executed_iteration import ExecutedIteration
from dynapipe_hpc.experiment.run.iteration_result import IterationResult
from dynapipe_hpc.experiment.run.log import Log
from dynapipe_hpc.experiment.run.online_costs import Costs
from dynapipe_hpc.experiment.run.traces import Traces
from dynapipe_hpc.job.ending import StopRequests


@dataclass(frozen=True, slots=True, kw_only=True)
class RunParts:
    """The parts of a run beside training.

    Attributes:
        costs: Costs that iterations are planned by.
        traces: Traces of iterations.
        evaluations: Evaluations between iterations, which may end training.
        checkpoints: Checkpoints, written as configured and at the end.
        log: Log of the run.
    """

    costs: Costs
    traces: Traces
    evaluations: Evaluations | NoEvaluations
    checkpoints: Checkpoints
    log: Log

    def own_result(self, executed: ExecutedIteration, stop: StopRequests) -> IterationResult:
        """Result of an iteration on this rank, with what has been asked of it meanwhile."""
        trace_first, trace_last = self.traces.take_request(executed.plan.iteration)
        return replace(
            IterationResult.from_rank(executed),
            trace_first=trace_first,
            trace_last=trace_last,
            stop_signal=int(stop.asked),
            pass_times=tuple(self.costs.pass_times(executed)),
        )
