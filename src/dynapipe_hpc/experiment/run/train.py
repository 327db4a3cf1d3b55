"""The training loop of one rank."""

import time
from dataclasses import dataclass, replace

from dynapipe_hpc.executor.clock import HostClock
from dynapipe_hpc.executor.progress import Progress
from dynapipe_hpc.executor.run import launch_plan
from dynapipe_hpc.executor.trace import IterationTrace
from dynapipe_hpc.experiment.config import ExperimentConfig
from dynapipe_hpc.experiment.rank.assemble import Worker
from dynapipe_hpc.experiment.rank.instruction_ranges import InstructionRanges
from dynapipe_hpc.experiment.run.checkpoint_time import CheckpointTime
from dynapipe_hpc.experiment.run.checkpoints import Checkpoints
from dynapipe_hpc.experiment.run.evaluations import Evaluations
from dynapipe_hpc.experiment.run.intermission import Intermission
from dynapipe_hpc.experiment.run.online_costs import OnlineCosts
from dynapipe_hpc.experiment.run.plan_ahead import PlanAhead
from dynapipe_hpc.experiment.run.plan_feed import PlanFeed, TakenPlan
from dynapipe_hpc.experiment.run.record import Execution, RankReport, Traced, record_of
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
        intermission: Time between iterations.
        online: What costs are corrected by, if they are.
    """

    job: Job
    config: ExperimentConfig
    worker: Worker
    feed: PlanFeed
    planning: PlanAhead
    outliers: dict[int, Outlier]
    position: Position
    progress: Progress
    intermission: Intermission
    online: OnlineCosts | None = None

    def run(self, iteration: int) -> tuple[Execution, TakenPlan]:
        """Takes the plan of an iteration and executes it; returns what was taken, too."""
        self.position.enter(Phase.WAITS_FOR_PLAN, iteration)
        taken = self.feed.take(iteration)
        self.position.enter(Phase.COMPARES_PLANS, iteration)
        check_same_plans(self.job, iteration, plans_hash(taken.data))
        self.position.start_plan(iteration, taken.data)
        started_s = time.perf_counter()
        trace = self._execute(taken.plan)
        self.position.enter(Phase.REPORTS, iteration)
        planning_ms = self.planning.planning_ms.pop(iteration, 0.0)
        outlier = self.outliers.pop(iteration, None)
        execution = Execution(
            *(taken.plan, trace, started_s, taken.waited_ms),
            *(planning_ms, taken.plans_ahead, outlier),
        )
        return execution, taken

    def report(self, execution: Execution) -> RankReport:
        """The rank's numbers about an iteration."""
        is_first_shard = self.job.rank % self.config.cluster.n_shards == 0
        report = RankReport.of(execution, first_shard=is_first_shard)
        if self.online is None:
            return report
        counted = execution if is_first_shard else None
        return replace(report, pass_times=self.online.of_rank(counted))

    def traced(self, execution: Execution, taken: TakenPlan) -> Traced:
        """What is written of an iteration that is traced."""
        started_s, trace = execution.started_s, execution.trace
        planning = self.planning.activity.between(started_s, started_s + 1e-3 * max(trace.end_ms))
        return Traced(taken.data, replace(trace, planning=planning))

    def _execute(self, plan: RankPlan) -> IterationTrace:
        worker = self.worker
        transport = worker.channels.transport
        self.intermission.end()
        launched = launch_plan(plan, worker.stage, transport, worker.clock, self._progress_in(plan))
        if not launched.is_busy:
            self.intermission.begin()
        if plan.iteration + 1 < self.config.training.n_iterations:
            self.feed.prepare(plan.iteration + 1, lambda: launched.is_busy)
        trace = launched.finish()
        # A rank that lacks the next plan waits for a planner.
        if self.feed.is_ahead:
            self.intermission.begin()
        else:
            self.intermission.end()
        return trace

    def _progress_in(self, plan: RankPlan) -> Progress:
        """Record of the instructions of a plan, which profilers see if that is configured."""
        if not self.config.report.ranges:
            return self.progress
        on_gpu = not isinstance(self.worker.clock, HostClock)
        return InstructionRanges(plan, self.progress, nvtx=on_gpu)


def train(
    rank: RankAtWork,
    checkpoints: Checkpoints,
    log: RunLog | None,
    n_done: int,
    evaluations: Evaluations | None = None,
) -> int:
    """Executes the remaining iterations; all ranks together.

    Args:
        rank: This rank.
        checkpoints: Checkpoints, written as configured and at the end.
        log: Log of the run on the first rank, None elsewhere.
        n_done: Number of iterations that earlier runs have done.
        evaluations: Evaluations between iterations, which may end training; None for none.

    Returns:
        The signal that stopped the run before its end; 0 if there was none.
    """
    checkpoint_time = CheckpointTime(rank.config.checkpoint)
    n_shards, n_iterations = rank.config.cluster.n_shards, rank.config.training.n_iterations
    n_before, asked, wanted = n_done, 0, range(0)
    if evaluations is not None:  # one that an earlier run could not finish, or the first
        if evaluations.after_iteration(n_done):
            checkpoints.keep_as_best(n_done)
        asked = evaluations.interrupted_by
    while n_done < n_iterations and not asked and not (evaluations and evaluations.history.is_over):
        iteration = n_done
        started_s = time.perf_counter()
        try:
            execution, taken = rank.run(iteration)
        except PlannerFailedError:
            # `PlanAhead` fails an iteration on all ranks or none, so they can end together.
            checkpoints.finish()
            with rank.job.agreeing():
                raise
        own = rank.report(execution)
        if log is not None:
            first, last = log.trace_request.take(iteration)
            own = replace(own, trace_first=first, trace_last=last)
        # Ranks may receive the signal at different times, or only one of them: all stop together.
        report, asked = own.combined(rank.job)
        if rank.online is not None:
            changes = rank.online.add(report.pass_times)
            if log is not None:
                log.note(iteration, changes)
        measured_ms = 1e3 * (time.perf_counter() - started_s)
        if report.trace_last >= 0:
            wanted = range(report.trace_first, report.trace_last + 1)
        is_traced = iteration < rank.config.report.trace_iterations or iteration in wanted
        traced = rank.job.gather(rank.traced(execution, taken)) if is_traced else []
        if log is not None:
            record = record_of(report, taken.samples, measured_ms)
            log.add(record, traced[::n_shards], taken.samples, report.bubble_share)
        n_done += 1
        is_best = evaluations is not None and evaluations.after_iteration(n_done)
        checkpoints.after_iteration(n_done, is_best=is_best)
        rank.position.enter(Phase.REPORTS, iteration)
        if evaluations is not None:
            asked = asked or evaluations.interrupted_by
        if log is not None and not asked:
            checkpoint_time.check(1e-3 * measured_ms, checkpoints.took_s)
    if log is not None:  # no checkpoint is complete before the log of its iterations
        log.wait()
    if n_done == n_before:  # nothing that is not in a checkpoint
        checkpoints.finish()
    else:
        checkpoints.end(n_done, stopped=bool(asked))
    lacks_evaluation = evaluations is not None and evaluations.interrupted_by
    return asked if n_done < n_iterations or lacks_evaluation else 0
