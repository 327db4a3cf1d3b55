"""The training loop of one rank."""

import time
from collections.abc import Sequence
from dataclasses import dataclass

from dynapipe_hpc.data.sample import Sample
from dynapipe_hpc.executor.progress import Progress
from dynapipe_hpc.executor.run import launch_plan
from dynapipe_hpc.executor.trace import IterationTrace
from dynapipe_hpc.experiment.config import ExperimentConfig
from dynapipe_hpc.experiment.rank.assemble import Worker
from dynapipe_hpc.experiment.run.checkpoint_time import CheckpointTime
from dynapipe_hpc.experiment.run.checkpoints import Checkpoints
from dynapipe_hpc.experiment.run.plan_ahead import PlanAhead
from dynapipe_hpc.experiment.run.plan_feed import PlanFeed
from dynapipe_hpc.experiment.run.record import Execution, RankReport, record_of
from dynapipe_hpc.experiment.run.run_log import RunLog
from dynapipe_hpc.experiment.run.same_plans import check_same_plans
from dynapipe_hpc.experiment.watch.position import Phase, Position
from dynapipe_hpc.job.job import Job
from dynapipe_hpc.plan.codec import plans_hash
from dynapipe_hpc.plan.rank_plan import RankPlan
from dynapipe_hpc.planner.schedule.outlier import Outlier
from dynapipe_hpc.store.plan_store import PlannerFailedError


@dataclass(frozen=True, slots=True)
class RankAtWork:
    """A rank with everything it needs to take plans and execute them.

    Attributes:
        outliers: Outliers of the iterations that this rank has planned.
        position: Position of the rank, in which its phases are recorded.
        progress: Record of its instructions, in the same position.
    """

    job: Job
    config: ExperimentConfig
    worker: Worker
    feed: PlanFeed
    planning: PlanAhead
    outliers: dict[int, Outlier]
    position: Position
    progress: Progress

    def run(self, iteration: int) -> tuple[Execution, Sequence[Sample]]:
        """Takes the plan of an iteration and executes it; returns its global batch, too."""
        self.position.enter(Phase.WAITS_FOR_PLAN, iteration)
        taken = self.feed.take(iteration)
        self.position.enter(Phase.COMPARES_PLANS, iteration)
        check_same_plans(self.job, iteration, plans_hash(taken.data))
        self.position.start_plan(iteration, taken.data)
        trace = self._execute(taken.plan)
        self.position.enter(Phase.REPORTS, iteration)
        planning_ms = self.planning.planning_ms.pop(iteration, 0.0)
        outlier = self.outliers.pop(iteration, None)
        execution = Execution(
            taken.plan, trace, taken.waited_ms, planning_ms, taken.plans_ahead, outlier
        )
        return execution, taken.samples

    def _execute(self, plan: RankPlan) -> IterationTrace:
        worker = self.worker
        transport = worker.channels.transport
        launched = launch_plan(plan, worker.stage, transport, worker.clock, self.progress)
        if plan.iteration + 1 < self.config.training.iterations:
            self.feed.prepare(plan.iteration + 1, lambda: launched.is_busy)
        return launched.finish()


def train(
    rank: RankAtWork,
    checkpoints: Checkpoints,
    log: RunLog | None,
    n_done: int,
) -> int:
    """Executes the remaining iterations; all ranks together.

    Args:
        rank: This rank.
        checkpoints: Checkpoints, written as configured and at the end.
        log: Log of the run on the first rank, None elsewhere.
        n_done: Number of iterations that earlier runs have done.

    Returns:
        The signal that stopped the run before its end; 0 if there was none.
    """
    checkpoint_time = CheckpointTime(rank.config.checkpoint)
    for iteration in range(n_done, rank.config.training.iterations):
        started_s = time.perf_counter()
        try:
            execution, samples = rank.run(iteration)
        except PlannerFailedError:
            # `PlanAhead` fails an iteration on all ranks or none, so they can end together.
            checkpoints.finish()
            with rank.job.agreeing():
                raise
        reports = rank.job.gather(RankReport.of(execution))
        measured_ms = 1e3 * (time.perf_counter() - started_s)
        is_traced = iteration < rank.config.report.trace_iterations
        traced = rank.job.gather(execution) if is_traced else []
        n_shards = rank.config.cluster.n_shards
        if log is not None:
            # The shards of a stage execute the same plan in step, so one represents all.
            record = record_of(reports, n_shards, samples, measured_ms)
            log.add(record, traced[::n_shards], samples)
        checkpoints.after_iteration(iteration + 1)
        rank.position.enter(Phase.REPORTS, iteration)
        # Ranks may receive the signal at different times, or only one of them: all stop together.
        if asked := rank.job.largest(rank.job.stop.asked):
            break
        if log is not None:
            checkpoint_time.check(1e-3 * measured_ms, checkpoints.took_s)
    checkpoints.end(iteration + 1, stopped=bool(asked))
    return asked if iteration + 1 < rank.config.training.iterations else 0
