"""The run: every rank executes its plans and makes its share of the coming ones."""

from collections.abc import Iterator
from contextlib import AbstractContextManager, closing, contextmanager, nullcontext
from pathlib import Path
from signal import Signals

from dynapipe_hpc.data.errors import escaped
from dynapipe_hpc.executor.clock import HostClock
from dynapipe_hpc.executor.progress import Progress
from dynapipe_hpc.experiment.check_costs import check_costs
from dynapipe_hpc.experiment.config import ExperimentConfig
from dynapipe_hpc.experiment.describe_data import describe_data
from dynapipe_hpc.experiment.experiment import Experiment
from dynapipe_hpc.experiment.lock.locked import locked
from dynapipe_hpc.experiment.lock.run_lock import RunLock
from dynapipe_hpc.experiment.rank.assemble import Worker, build_worker
from dynapipe_hpc.experiment.rank.circumstances import circumstances
from dynapipe_hpc.experiment.rank.devices import find_device, slow_dtype
from dynapipe_hpc.experiment.run.checkpoints import Checkpoints
from dynapipe_hpc.experiment.run.dataset_check import DatasetCheck
from dynapipe_hpc.experiment.run.end_record import recorder_of
from dynapipe_hpc.experiment.run.evaluations import Evaluations
from dynapipe_hpc.experiment.run.evaluator import Evaluator
from dynapipe_hpc.experiment.run.intermission import Intermission
from dynapipe_hpc.experiment.run.loss_history import LossHistory, is_complete
from dynapipe_hpc.experiment.run.online_costs import OnlineCosts
from dynapipe_hpc.experiment.run.plan_ahead import PlanAhead
from dynapipe_hpc.experiment.run.plan_feed import PlanFeed
from dynapipe_hpc.experiment.run.resume import ResumePoint, facts_of_run, find_resume_point
from dynapipe_hpc.experiment.run.run_log import RunLog
from dynapipe_hpc.experiment.run.train import RankAtWork, train
from dynapipe_hpc.experiment.run.warm_start import warm_start
from dynapipe_hpc.experiment.watch.device_progress import DeviceProgress
from dynapipe_hpc.experiment.watch.position import Position
from dynapipe_hpc.experiment.watch.watchdog import Watchdog
from dynapipe_hpc.job.end_stopped import STOPPED, end_stopped
from dynapipe_hpc.job.how_ended import HowEnded
from dynapipe_hpc.job.job import Job
from dynapipe_hpc.job.say import warn
from dynapipe_hpc.plan.rank_plan import RankPlan
from dynapipe_hpc.planner.schedule.outlier import Outlier
from dynapipe_hpc.report.mixture_file import write_mixture
from dynapipe_hpc.store.config import StoreConfig
from dynapipe_hpc.store.mpi import MpiPlanStore
from dynapipe_hpc.store.plan_store import PlanStore
from dynapipe_hpc.training.checkpoint.folder import CheckpointFolder
from dynapipe_hpc.training.checkpoint.read_parts import read_parts
from dynapipe_hpc.training.checkpoint.state import TrainingState
from dynapipe_hpc.training.config import TrainingConfig
from dynapipe_hpc.training.huggingface.token_ids import write_token_ids
from dynapipe_hpc.training.learning_rate import describe_longer


def run_experiment(job: Job, experiment: Experiment, output: Path) -> int:
    """Trains as a configuration says; all ranks together.

    Args:
        job: The ranks, as many as the configuration needs.
        experiment: The experiment, from `start_experiment`.
        output: The run folder to create, or to continue from its newest checkpoint.

    Returns:
        The exit code: 0, or 75 if the run was asked to stop before its last iteration.

    Raises:
        SystemExit: Costs were measured on another kind of device, the device cannot be used,
            another run writes the folder, or a planner failed; the first rank has said why.
        RunError: Training cannot continue.
    """
    with job.agreeing():
        if job.is_first:
            _warn(experiment, job.size)
    with locked(job, output) as lock:
        asked = _run(job, experiment, output, lock)
    return end_stopped(job, asked) if asked else 0


def _warn(experiment: Experiment, n_ranks: int) -> None:
    here = circumstances(experiment.config, n_ranks)
    for warning in (check_costs(experiment.costs, here), slow_dtype(experiment.config)):
        if warning:
            warn(warning)


def _run(job: Job, experiment: Experiment, output: Path, lock: RunLock) -> int:
    """Trains in a run folder that is locked; returns the signal that stopped the run, or 0."""
    config, dataset = experiment.config, experiment.dataset
    folder = CheckpointFolder(output / "checkpoints", config.checkpoint)
    with job.agreeing():
        facts = facts_of_run(config, dataset)
    point = find_resume_point(job, folder, facts)
    n_done = point.description.n_done if point else 0
    history = _history(job, config, output, n_done)
    if history and config.checkpoint.keep_best:
        folder.best = history.best
    if is_complete(n_done, config.training.n_iterations, history):
        _say_complete(job, output, config.training, history)
        return 0
    with job.agreeing():
        on = find_device(job, config)
    intermission = Intermission()
    with job.agreeing():
        log = (
            RunLog(config, experiment.placement, output, job.size, n_done, lock, intermission)
            if job.is_first
            else None
        )
        if job.is_first:
            write_mixture(output, experiment.mixture)
    job.ending.recorder = recorder_of(output)
    told = describe_data(experiment, config.training.n_iterations)
    for line in told if job.is_first else ():
        print(escaped(line), flush=True)
    worker = build_worker(experiment, job, on)
    if point:
        _restore(job, point, worker.state)
    if config.model.init_from is not None:
        warm_start(job, config, worker.state, output, resumed=point is not None)
    with job.agreeing():
        if job.is_first:
            write_token_ids(output, config.model, dataset.start_id, dataset.end_ids)
    store = _open_store(job, config.store, n_done)
    watchdog = Watchdog(job, config)
    position = watchdog.position
    online = _online(experiment, n_done, point)
    checkpoints = Checkpoints(
        job, config.checkpoint, folder, worker.state, facts, position, lock.check, online
    )
    outliers: dict[int, Outlier] = {}
    with job.stop.observed() if checkpoints.is_on else nullcontext():
        with (
            _closing_together(store, watchdog),
            _planning(experiment, store, job, n_done, outliers, online, intermission) as planning,
            closing(online) if online is not None else nullcontext(),
            closing(log) if log is not None else nullcontext(),
            _checking(job, experiment),
            watchdog,
            _progress(worker, position) as progress,
        ):
            feed = PlanFeed(store, job.rank, experiment.sampler, worker, config.store.timeout_s)
            rank = RankAtWork(
                *(job, config, worker, feed, planning, outliers),
                *(position, progress, intermission, online),
            )
            evaluations = _evaluations(experiment, rank, history, log)
            asked = train(rank, checkpoints, log, n_done, evaluations)
        worker.channels.close()
    if job.is_first:
        _record_end(job, asked, history)
    return asked


def _record_end(job: Job, asked: int, history: LossHistory | None) -> None:
    """Records an end without an error, after the signal `asked`, or 0."""
    if asked:
        stopped_by = f"stopped by {Signals(asked).name}"
        job.ending.record(HowEnded.STOPPED, STOPPED, stopped_by)
        return
    told = "all iterations are done"
    if history and history.is_over:
        told = f"training has ended early: {history.describe()}"
    job.ending.record(HowEnded.COMPLETED, 0, told)


@contextmanager
def _closing_together(store: PlanStore, watchdog: Watchdog) -> Iterator[None]:
    """Closes both when all ranks leave the block together.

    Not after an error: closing is collective, and other ranks may never reach it.
    """
    try:
        yield
    except SystemExit:  # of all ranks
        watchdog.close()
        store.close()
        raise
    watchdog.close()
    store.close()


def _restore(job: Job, point: ResumePoint, state: TrainingState) -> None:
    """Overwrites the state of training with a checkpoint; all ranks together."""
    with job.agreeing():
        read_parts(point.path, len(point.description.part_checksums), state.to_restore())
    state.resume(point.description.counters)


def _checking(job: Job, experiment: Experiment) -> AbstractContextManager[DatasetCheck | None]:
    """The comparison of the dataset with its checksums, on the first rank only."""
    if not job.is_first:
        return nullcontext()
    return closing(DatasetCheck(experiment.dataset, wanted=experiment.config.data.verify))


def _progress(worker: Worker, position: Position) -> AbstractContextManager[Progress]:
    """Record of the instructions that this rank's device executes."""
    if isinstance(worker.clock, HostClock):
        return nullcontext(position)
    return DeviceProgress(position, worker.clock.has_passed)


def _history(job: Job, config: ExperimentConfig, output: Path, n_done: int) -> LossHistory | None:
    """Losses of earlier evaluations, all ranks together; None if the run does not evaluate."""
    history = None
    with job.agreeing():
        if job.is_first and config.evaluation is not None:
            history = LossHistory.read(output, config.evaluation, n_done)
    return job.broadcast(history)


def _evaluations(
    experiment: Experiment, rank: RankAtWork, history: LossHistory | None, log: RunLog | None
) -> Evaluations | None:
    """Evaluations of the run, planned by all ranks together; None if there are none."""
    config, samples = experiment.config, experiment.evaluation
    if config.evaluation is None or samples is None or history is None:
        return None
    evaluator = Evaluator(rank.job, experiment, samples, rank.worker, rank.position, rank.progress)
    return Evaluations(evaluator, config.evaluation, config.training.n_iterations, history, log)


def _say_complete(
    job: Job, output: Path, config: TrainingConfig, history: LossHistory | None
) -> None:
    if not job.is_first:
        return
    told = (
        f"{output}: training has ended early: {history.describe()}; to continue, raise "
        "evaluation.patience"
        if history and history.is_over
        else f"{output}: all {config.n_iterations} iterations are done; to continue, raise "
        f"training.iterations: {describe_longer(config)}"
    )
    print(escaped(told), flush=True)


def _open_store(job: Job, config: StoreConfig, first_iteration: int) -> MpiPlanStore:
    """Opens the plan store, and prints who makes progress on it; all ranks together."""
    store = MpiPlanStore(
        job.comm, config.look_ahead, config.plan_bytes, first_iteration, config.progress
    )
    if job.is_first:
        print(store.progress, flush=True)
    return store


def _online(experiment: Experiment, n_done: int, point: ResumePoint | None) -> OnlineCosts | None:
    """What corrects the costs of this run, as it was when training stopped."""
    if not experiment.config.planner.cost.online:
        return None
    return OnlineCosts(experiment, n_done, point.description.online if point else ())


def _planning(
    experiment: Experiment,
    store: PlanStore,
    job: Job,
    n_done: int,
    outliers: dict[int, Outlier],
    online: OnlineCosts | None,
    intermission: Intermission,
) -> PlanAhead:
    """Planning of this rank's iterations, none of which begins in an intermission.

    Their outliers are entered by iteration.
    """
    config, sampler = experiment.config, experiment.sampler

    def make_plans(iteration: int) -> list[RankPlan]:
        planner = online.planner(iteration) if online else experiment.planner
        intermission.wait()
        samples = sampler.iteration(iteration)
        choice = planner.choose(samples)
        plans = planner.write(iteration, choice)
        if outlier := planner.outlier(choice, samples):
            outliers[iteration] = outlier
        return plans

    iterations = range(n_done, config.training.n_iterations)
    mine = [k for k in iterations if store.planner_of(k) == job.rank]
    plan_of_rank = [config.cluster.plan_of(rank) for rank in range(job.size)]
    return PlanAhead(make_plans, store, mine, plan_of_rank)
