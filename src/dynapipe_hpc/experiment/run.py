"""Trains: every rank executes its plans, and makes its share of the coming ones."""

import time
from collections.abc import Sequence
from contextlib import closing, nullcontext
from dataclasses import dataclass
from pathlib import Path

from dynapipe_hpc.data.sample import Sample
from dynapipe_hpc.data.sampler import TokenBudgetSampler
from dynapipe_hpc.executor.position import Phase, Position
from dynapipe_hpc.executor.run import run_plan
from dynapipe_hpc.executor.trace import IterationTrace
from dynapipe_hpc.experiment.assemble import (
    Worker,
    build_worker,
    check_size,
    check_split_backward,
)
from dynapipe_hpc.experiment.check_costs import check_costs
from dynapipe_hpc.experiment.checkpoints import Checkpoints
from dynapipe_hpc.experiment.config import ExperimentConfig
from dynapipe_hpc.experiment.describe_cut import describe_cut
from dynapipe_hpc.experiment.devices import find_place
from dynapipe_hpc.experiment.launch import Job
from dynapipe_hpc.experiment.load import load_config, to_toml
from dynapipe_hpc.experiment.machine import machine_facts
from dynapipe_hpc.experiment.placed import placed
from dynapipe_hpc.experiment.plan_ahead import PlanAhead
from dynapipe_hpc.experiment.record import Execution, RankReport, line_of, record_of
from dynapipe_hpc.experiment.resume import (
    facts_of,
    find_resume_point,
    n_repeatable,
    samples_of,
)
from dynapipe_hpc.experiment.same_plans import check_same_plans
from dynapipe_hpc.experiment.source import Source, open_source
from dynapipe_hpc.experiment.stopping import CheckpointTime, end_stopped
from dynapipe_hpc.experiment.watchdog import Watchdog
from dynapipe_hpc.plan.codec import decode, plans_hash
from dynapipe_hpc.plan.rank_plan import RankPlan
from dynapipe_hpc.report.iteration_record import IterationRecord
from dynapipe_hpc.report.run_folder import RunFolder
from dynapipe_hpc.store.config import StoreConfig
from dynapipe_hpc.store.mpi import MpiPlanStore
from dynapipe_hpc.store.plan_store import PlannerFailedError, PlanStore
from dynapipe_hpc.training.checkpoint.folder import CheckpointFolder


def run_experiment(job: Job, path: Path, overrides: Sequence[str], output: Path) -> int:
    """Trains as a configuration says; all ranks together.

    Args:
        job: The ranks, as many as the configuration needs.
        path: The configuration.
        overrides: As `load_config` takes them.
        output: The run folder to create, or to go on with from its newest checkpoint.

    Returns:
        The exit code: 0, or 75 if the run was asked to stop before its end.

    Raises:
        SystemExit: Configuration, dataset, cost table or number of ranks cannot be used, or a
            planner failed; the first rank has said why.
        RunError: Training cannot go on.
    """
    with job.agreeing():
        config = load_config(path, overrides)
        check_size(job, config.cluster)
        check_split_backward(config.planner.schedule)
        check_costs(config)
        # By the first rank alone: others might round costs in another way.
        config = placed(config) if job.is_first else config
    config = job.broadcast(config)
    with job.agreeing():
        source = open_source(config)
    folder = CheckpointFolder(output / "checkpoints", config.checkpoint)
    facts = {**facts_of(config), **samples_of(source)}
    point = find_resume_point(job, folder, facts)
    n_done = point.description.n_done if point else 0
    if n_done >= config.training.iterations:
        _say_complete(job, output, n_done)
        return 0
    with job.agreeing():
        place = find_place(job, config)
    with job.agreeing():
        log = _Log(config, output, job.size, n_done) if job.is_first else None
    for line in describe_cut(source.dataset, config.data.max_tokens) if job.is_first else ():
        print(line, flush=True)
    worker = build_worker(config, source, job, place)
    if point:
        point.restore(job, worker.state)
    checkpoints = Checkpoints(job, config.checkpoint, folder, worker.state, facts)
    store = _open_store(job, config.store, n_done)
    watchdog = Watchdog(job, config.cluster, config.executor.timeout_s, config.store.plan_bytes)
    with (
        _planning(config, source, store, job, n_done) as planning,
        closing(log) if log is not None else nullcontext(),
        watchdog,
        job.stop.heeded() if checkpoints.is_on else nullcontext(),
    ):
        rank = _Rank(job, config, worker, store, planning, watchdog.position)
        asked = _train(rank, source.sampler, checkpoints, log, n_done)
    # Not after an error: closing takes all ranks, and the others may be elsewhere.
    watchdog.close()
    store.close()
    worker.channels.close()
    return end_stopped(job, asked) if asked else 0


def _say_complete(job: Job, output: Path, n_done: int) -> None:
    if job.is_first:
        print(
            f"{output}: all {n_done} iterations are done; to go on, raise training.iterations",
            flush=True,
        )


def _open_store(job: Job, config: StoreConfig, first_iteration: int) -> MpiPlanStore:
    """Opens the plan store and says how it works; all ranks together."""
    store = MpiPlanStore(
        job.comm, config.look_ahead, config.plan_bytes, first_iteration, config.progress
    )
    if job.is_first:
        print(store.progress, flush=True)
    return store


def _planning(
    config: ExperimentConfig, source: Source, store: PlanStore, job: Job, n_done: int
) -> PlanAhead:
    def make_plans(iteration: int) -> list[RankPlan]:
        return source.planner.make_plans(iteration, source.sampler.iteration(iteration))

    iterations = range(n_done, config.training.iterations)
    mine = [k for k in iterations if store.planner_of(k) == job.rank]
    plan_of_rank = [config.cluster.plan_of(rank) for rank in range(job.size)]
    return PlanAhead(make_plans, store, mine, plan_of_rank)


@dataclass(frozen=True, slots=True)
class _Rank:
    """This rank at work."""

    job: Job
    config: ExperimentConfig
    worker: Worker
    store: PlanStore
    planning: PlanAhead
    position: Position

    def run(self, iteration: int, samples: Sequence[Sample]) -> Execution:
        """Takes the plan of an iteration and executes it."""
        started_s = time.perf_counter()
        self.position.enter(Phase.WAITS_FOR_PLAN, iteration)
        data = self._take(iteration)
        waited_ms = 1e3 * (time.perf_counter() - started_s)
        self.position.enter(Phase.COMPARES_PLANS, iteration)
        check_same_plans(self.job, iteration, plans_hash(data))
        plan = decode(data)
        plans_ahead = self.store.plans_ahead(self.job.rank)
        self.worker.loader.start_iteration(samples)
        self.position.start_plan(iteration, data)
        trace = self._execute(plan)
        self.position.enter(Phase.REPORTS, iteration)
        planning_ms = self.planning.planning_ms.pop(iteration, 0.0)
        return Execution(plan, trace, waited_ms, planning_ms, plans_ahead)

    def _execute(self, plan: RankPlan) -> IterationTrace:
        worker = self.worker
        transport = worker.channels.transport
        return run_plan(plan, worker.stage, transport, worker.clock, self.position)

    def _take(self, iteration: int) -> bytes:
        try:
            return self.store.take(iteration, self.job.rank, self.config.store.timeout_s)
        except PlannerFailedError:
            # `PlanAhead` fails an iteration for all ranks or none: they can end in good order.
            with self.job.agreeing():
                raise


class _Log:
    """What the first rank keeps of the run."""

    def __init__(self, config: ExperimentConfig, output: Path, n_ranks: int, n_done: int) -> None:
        facts = (output, to_toml(config), machine_facts(n_ranks))
        if n_done:
            print(f"{output}: goes on after {n_done} iterations", flush=True)
            self._folder = RunFolder.resume(*facts, n_done)
        else:
            self._folder = RunFolder.create(*facts, n_repeatable(output, config))

    def add(self, record: IterationRecord, traced: Sequence[Execution]) -> None:
        """Adds an iteration, with plans and traces of the first shard's ranks or of none."""
        self._folder.add(record)
        if traced:
            self._folder.add_trace([e.plan for e in traced], [e.trace for e in traced])
        print(line_of(record), flush=True)

    def close(self) -> None:
        """Ends the run folder."""
        self._folder.close()


def _train(
    rank: _Rank,
    sampler: TokenBudgetSampler,
    checkpoints: Checkpoints,
    log: _Log | None,
    n_done: int,
) -> int:
    """Returns the signal that stopped the run before its end; 0 if none did."""
    checkpoint_time = CheckpointTime(rank.config.checkpoint)
    for iteration in range(n_done, rank.config.training.iterations):
        started_s = time.perf_counter()
        samples = sampler.iteration(iteration)
        execution = rank.run(iteration, samples)
        reports = rank.job.gather(RankReport.of(execution))
        measured_ms = 1e3 * (time.perf_counter() - started_s)
        is_traced = iteration < rank.config.report.trace_iterations
        traced = rank.job.gather(execution) if is_traced else []
        n_shards = rank.config.cluster.n_shards
        if log is not None:
            # The shards of a stage go through their plan side by side: one stands for all.
            log.add(record_of(reports, n_shards, samples, measured_ms), traced[::n_shards])
            checkpoint_time.check(1e-3 * measured_ms, checkpoints.took_s)
        rank.position.enter(Phase.SAVES, iteration)
        checkpoints.after_iteration(iteration + 1)
        # One rank may have been asked earlier than others, or alone: all stop together.
        if asked := rank.job.largest(rank.job.stop.asked):
            break
    checkpoints.save_now(iteration + 1)
    return asked if iteration + 1 < rank.config.training.iterations else 0
