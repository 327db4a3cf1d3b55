"""Traces of iterations: those that the configuration or a request wants."""

from pathlib import Path

from dynapipe_hpc.experiment.config import ExperimentConfig
from dynapipe_hpc.experiment.run.executed_iteration import ExecutedIteration, RankTrace
from dynapipe_hpc.experiment.run.iteration_result import IterationResult
from dynapipe_hpc.experiment.run.planner_activity import PlannerActivity
from dynapipe_hpc.experiment.run.trace_request import TraceRequest
from dynapipe_hpc.job.job import Job


class Traces:
    """Traces of a run, which the first rank writes."""

    def __init__(
        self, job: Job, config: ExperimentConfig, output: Path, activity: PlannerActivity
    ) -> None:
        """Gathers traces of the first shard's ranks.

        Args:
            job: The ranks.
            config: The configuration: how many iterations are traced from the start.
            output: The run folder, in which the first rank looks for requests.
            activity: What this rank's planner does meanwhile.
        """
        self._job, self._activity = job, activity
        self._n_first, self._n_shards = config.report.trace_iterations, config.cluster.n_shards
        self._request = TraceRequest(output, is_read=job.is_first)
        self._traced_range = range(0)

    def take_request(self, iteration: int) -> tuple[int, int]:
        """The iterations that a new request wants, see `TraceRequest.take`."""
        return self._request.take(iteration)

    def gather_if_wanted(
        self, executed: ExecutedIteration, result: IterationResult
    ) -> list[RankTrace]:
        """The traces of an iteration on the first rank; none elsewhere, or if it is not traced.

        All ranks call this together, and know from the combined result whether they gather.
        """
        if result.trace_last >= 0:
            self._traced_range = range(result.trace_first, result.trace_last + 1)
        iteration = result.iteration
        if iteration >= self._n_first and iteration not in self._traced_range:
            return []
        return self._job.gather(executed.rank_trace(self._activity))[:: self._n_shards]
