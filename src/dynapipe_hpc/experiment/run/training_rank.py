"""A rank that trains: it takes plans and executes them."""

import time
from dataclasses import dataclass

from dynapipe_hpc.executor.clock import HostClock
from dynapipe_hpc.executor.progress import Progress
from dynapipe_hpc.executor.run import launch_plan
from dynapipe_hpc.executor.trace import IterationTrace
from dynapipe_hpc.experiment.rank.assemble import Worker
from dynapipe_hpc.experiment.rank.instruction_ranges import InstructionRanges
from dynapipe_hpc.experiment.run.executed_iteration import ExecutedIteration
from dynapipe_hpc.experiment.run.plan_ahead import PlanAhead
from dynapipe_hpc.experiment.run.plan_feed import PlanFeed
from dynapipe_hpc.experiment.run.quiet_period import QuietPeriod
from dynapipe_hpc.experiment.run.same_plans import check_same_plans
from dynapipe_hpc.experiment.watch.position import Phase, Position
from dynapipe_hpc.job.job import Job
from dynapipe_hpc.plan.codec import plans_hash
from dynapipe_hpc.plan.rank_plan import RankPlan


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainingRank:
    """A rank with everything it needs to take plans and execute them.

    Attributes:
        job: The ranks.
        iterations: The iterations that are left.
        worker: The parts of this rank that execute plans.
        feed: Plans of this rank.
        planning: Planning of its share of the iterations.
        position: Position of the rank, in which its phases are recorded.
        progress: Record of its instructions, in the same position.
        quiet_period: Time between iterations.
        shows_ranges: Whether profilers see its instructions.
    """

    job: Job
    iterations: range
    worker: Worker
    feed: PlanFeed
    planning: PlanAhead
    position: Position
    progress: Progress
    quiet_period: QuietPeriod
    shows_ranges: bool = False

    def execute(self, iteration: int) -> ExecutedIteration:
        """Takes the plan of an iteration and executes it; all ranks together."""
        self.position.enter(Phase.WAITS_FOR_PLAN, iteration)
        taken = self.feed.take(iteration)
        self.position.enter(Phase.COMPARES_PLANS, iteration)
        # Collective, before the first instruction: other plans would deadlock.
        check_same_plans(self.job, iteration, plans_hash(taken.data))
        self.position.start_plan(iteration, taken.data)
        start_s = time.perf_counter()
        trace = self._execute(taken.plan)
        self.position.enter(Phase.REPORTS, iteration)
        return ExecutedIteration(
            taken,
            trace,
            start_s,
            is_first_shard=self.worker.channels.collectives.shard == 0,
            planning=self.planning.take_facts(iteration),
        )

    def _execute(self, plan: RankPlan) -> IterationTrace:
        worker = self.worker
        transport = worker.channels.transport
        self.quiet_period.end()
        launched = launch_plan(
            plan, worker.stage, transport, worker.clock, progress=self._progress_in(plan)
        )
        if not launched.is_busy:
            self.quiet_period.begin()
        if plan.iteration + 1 < self.iterations.stop:
            self.feed.prepare(plan.iteration + 1, lambda: launched.is_busy)
        trace = launched.finish()
        # A rank that lacks the next plan waits for a planner.
        if self.feed.is_ahead:
            self.quiet_period.begin()
        else:
            self.quiet_period.end()
        return trace

    def _progress_in(self, plan: RankPlan) -> Progress:
        """Record of the instructions of a plan, which profilers see if that is configured."""
        if not self.shows_ranges:
            return self.progress
        on_gpu = not isinstance(self.worker.clock, HostClock)
        return InstructionRanges(plan, self.progress, nvtx=on_gpu)
