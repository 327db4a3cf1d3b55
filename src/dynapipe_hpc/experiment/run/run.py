"""The run: every rank executes its plans and makes its share of the coming ones."""

from contextlib import closing, nullcontext
from pathlib import Path
from signal import Signals

from dynapipe_hpc.data.errors import escaped
from dynapipe_hpc.experiment.describe_data import describe_data
from dynapipe_hpc.experiment.experiment import Experiment
from dynapipe_hpc.experiment.rank.devices import find_device
from dynapipe_hpc.experiment.rank.host_device import HostDevice, prepare_for_host
from dynapipe_hpc.experiment.run.checkpoints import Checkpoints
from dynapipe_hpc.experiment.run.dataset_check import DatasetCheck
from dynapipe_hpc.experiment.run.end_record import recorder_of
from dynapipe_hpc.experiment.run.log import open_log
from dynapipe_hpc.experiment.run.online_costs import costs_of_run
from dynapipe_hpc.experiment.run.plan_feed import PlanFeed
from dynapipe_hpc.experiment.run.plan_share import plan_share
from dynapipe_hpc.experiment.run.quiet_period import QuietPeriod
from dynapipe_hpc.experiment.run.run_start import find_run_start
from dynapipe_hpc.experiment.run.run_worker import build_run_worker
from dynapipe_hpc.experiment.run.train import train_experiment
from dynapipe_hpc.experiment.run.training_rank import TrainingRank
from dynapipe_hpc.experiment.run.watched_store import closing_together, open_store
from dynapipe_hpc.experiment.run_lock import RunLock, locked
from dynapipe_hpc.experiment.watch.device_progress import progress_of
from dynapipe_hpc.experiment.watch.watchdog import Watchdog
from dynapipe_hpc.job.job import Job
from dynapipe_hpc.job.ranks import JobOutcome
from dynapipe_hpc.job.slurm import STOPPED, end_stopped


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
    host, experiment = prepare_for_host(job, experiment)
    with locked(job, output) as lock:
        stop_signal = _run(job, experiment, output, host=host, lock=lock)
    # The folder is free before Slurm may start the job again.
    return end_stopped(job, stop_signal) if stop_signal else 0


def _run(job: Job, experiment: Experiment, output: Path, *, host: HostDevice, lock: RunLock) -> int:
    """Trains in a run folder that is locked; returns the signal that stopped the run, or 0.

    All ranks come here together, and make whatever is collective in the same order.
    """
    config, dataset = experiment.config, experiment.dataset
    start = find_run_start(job, experiment, output)
    if start.is_complete:
        if job.is_first:
            print(start.describe_complete(output, config.training), flush=True)
        return 0
    iterations = start.iterations
    # Before the log: a device that cannot be used begins no run folder.
    with job.fail_together():
        device = find_device(job, config)
    quiet_period = QuietPeriod()
    log = open_log(
        job, experiment, output, iterations.start, host=host, lock=lock, quiet_period=quiet_period
    )
    # From here on there is a folder in which to record how the run ends.
    job.ending.recorder = recorder_of(output)
    if job.is_first:
        print(f"attention: {host.attention}", flush=True)
        for line in describe_data(experiment, iterations.stop):
            print(escaped(line), flush=True)
    worker = build_run_worker(job, experiment, output, device, point=start.point)
    store = open_store(job, config.store, iterations.start)
    watchdog = Watchdog(job, config)
    costs = costs_of_run(experiment, iterations.start, start.online_costs)
    checkpoints = Checkpoints(
        job,
        config.checkpoint,
        start.folder,
        worker.state,
        facts=start.facts,
        position=watchdog.position,
        check_lock=lock.check,
        costs=costs,
    )
    planning = plan_share(
        job, experiment, store, iterations, costs=costs, quiet_period=quiet_period
    )
    # Left from the last to the first. The planning thread waits for costs, so they are closed
    # before it is joined; and it writes into the store, which is closed when no thread uses it.
    # Without checkpoints nothing could be saved, so a signal ends the job as ever.
    with job.stop.observed() if checkpoints.is_on else nullcontext():
        with (
            closing_together(store, watchdog),
            planning,
            closing(costs),
            closing(log),
            closing(DatasetCheck(dataset, is_wanted=config.data.verify))
            if job.is_first
            else nullcontext(),
            watchdog,
            progress_of(worker.clock, watchdog.position) as progress,
        ):
            rank = TrainingRank(
                job=job,
                iterations=iterations,
                worker=worker,
                feed=PlanFeed(
                    store, job.rank, experiment.sampler, worker, timeout_s=config.store.timeout_s
                ),
                planning=planning,
                position=watchdog.position,
                progress=progress,
                quiet_period=quiet_period,
                shows_ranges=config.report.ranges,
            )
            stop_signal = train_experiment(
                rank, experiment, start, output, costs=costs, checkpoints=checkpoints, log=log
            )
        worker.channels.close()  # collective, so not after an error
    if job.is_first:
        how, message = JobOutcome.COMPLETED, start.describe_end()
        if stop_signal:
            how, message = JobOutcome.STOPPED, f"stopped by {Signals(stop_signal).name}"
        job.ending.record(how, STOPPED if stop_signal else 0, message)
    return stop_signal
