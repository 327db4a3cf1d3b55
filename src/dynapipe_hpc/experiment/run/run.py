"""The run: every rank executes its plans and makes its share of the coming ones."""

import time
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path
from signal import Signals

from dynapipe_hpc.data.errors import escaped
from dynapipe_hpc.experiment.experiment import Experiment
from dynapipe_hpc.experiment.rank.devices import HostDevice, find_device, prepare_for_host
from dynapipe_hpc.experiment.run.checkpoints import Checkpoints
from dynapipe_hpc.experiment.run.evaluations import Evaluations, train_preferences
from dynapipe_hpc.experiment.run.iteration import (
    IterationResult,
    RankTrace,
    Traces,
    all_reduce_fields,
)
from dynapipe_hpc.experiment.run.open_run import OpenRun
from dynapipe_hpc.experiment.run.plans import Plans, open_store
from dynapipe_hpc.experiment.run.rank import Rank, run_largest_first, runs_largest_first
from dynapipe_hpc.experiment.run.run_log import RunLog
from dynapipe_hpc.experiment.run_lock import locked
from dynapipe_hpc.experiment.watch.rank_status import Phase
from dynapipe_hpc.job.job import Job
from dynapipe_hpc.job.ranks import JobOutcome
from dynapipe_hpc.job.slurm import STOPPED, end_stopped
from dynapipe_hpc.store.plan_store import PlannerFailedError


def run_experiment(job: Job, experiment: Experiment, output: Path) -> int:
    """Trains as a configuration says; all ranks together.

    The run folder is created, or continued from its newest checkpoint.

    Returns the exit code: 0, or 75 if the run was asked to stop before its last iteration. Raises
    `SystemExit`: Costs were measured on another kind of device, the device cannot be used, another
    run writes the folder, or a planner failed; the first rank has said why. Raises `RunError`:
    Training cannot continue.
    """
    host = prepare_for_host(job, experiment)
    with locked(job, output) as lock:
        run = OpenRun(job, experiment, output, lock)
        if run.is_complete:
            if job.is_first:
                print(run.describe_complete(), flush=True)
            return 0
        stop_signal = _run(job, experiment, run, host)
    # The folder is free before Slurm may start the job again.
    return end_stopped(job, stop_signal) if stop_signal else 0


def _run(job: Job, experiment: Experiment, run: OpenRun, host: HostDevice) -> int:
    """Trains in a run folder; returns the signal that stopped the run, or 0."""
    config = experiment.config
    # Before the records: a device that cannot be used begins no run folder.
    with job.fail_together():
        device = find_device(job, config)
    with run.records(host.facts):
        if job.is_first:
            print(f"attention: {host.attention}", flush=True)
            for line in experiment.data_lines:
                print(escaped(line), flush=True)
        with Rank(job, experiment, device) as rank:
            rank.start_at(run.point, run.output)
            stop_signal = _train(job, experiment, run, rank)
    if job.is_first:
        how, message = JobOutcome.COMPLETED, run.describe_end()
        if stop_signal:
            how, message = JobOutcome.STOPPED, f"stopped by {Signals(stop_signal).name}"
        job.ending.record(how, STOPPED if stop_signal else 0, message)
    return stop_signal


def _train(job: Job, experiment: Experiment, run: OpenRun, rank: Rank) -> int:
    """Plans and executes what is left; returns the signal that stopped the run, or 0."""
    config = experiment.config
    plans = Plans(
        job,
        experiment,
        run.iterations,
        rank.loader,
        store=open_store(job, config.store, run.iterations.start),
        quiet_period=run.quiet_period,
        known_costs=run.point.description.online if run.point else (),
    )
    # Without checkpoints nothing could be saved, so a signal ends the job as ever.
    stopping = job.stop.observed() if config.checkpoint.is_on else nullcontext()
    # The planning thread makes the first plans while the rest is prepared.
    with stopping, plans, rank.watched(run.output):
        checkpoints = Checkpoints(
            job,
            config.checkpoint,
            run.checkpoints,
            rank.state,
            facts=run.facts,
            position=rank.position,
            check_lock=run.lock.check,
            costs_state=lambda: plans.costs_state,
            history=run.history,
        )
        reference = None
        if config.training.preference_loss:
            log_probs = train_preferences(rank, experiment, run)
            if isinstance(log_probs, int):
                return log_probs
            reference = log_probs
        evaluations = Evaluations(
            rank, experiment, history=run.history, log=run.log, reference=reference
        )
        # Before an evaluation, which may take long: it needs less memory than training.
        if runs_largest_first(config, on_gpus=rank.device.type != "cpu"):
            line = run_largest_first(rank, plans, config)
            if line and job.is_first:
                print(line, flush=True)
        traces = Traces(run.output, config.report.trace_iterations, is_read=job.is_first)
        return train(rank, plans, run.log, evaluations, checkpoints=checkpoints, traces=traces)


def train(
    rank: Rank,
    plans: Plans,
    log: RunLog | None,
    evaluations: Evaluations,
    *,
    checkpoints: Checkpoints,
    traces: Traces,
) -> int:
    """Executes the iterations that are left; all ranks together, of which the first has a log.

    Returns the signal that stopped the run before its end; 0 if there was none.
    """
    job, n_done = rank.job, plans.iterations.start
    # An evaluation that an earlier run could not finish, or the first.
    stop_signal = evaluations.run_if_due(n_done)
    for iteration in plans.iterations:
        if stop_signal or evaluations.have_ended_training:
            break
        start_s = time.perf_counter()
        try:
            executed = rank.execute(iteration, plans)
        except PlannerFailedError:
            # An iteration cannot be planned for all ranks or none, so they end together.
            checkpoints.finish()
            with job.fail_together():
                raise
        own_result = replace(
            IterationResult.from_rank(executed),
            traced_until=traces.take(iteration),
            stop_signal=int(job.stop.asked),
            pass_times=plans.pass_times(executed),
        )
        # Ranks may receive a signal at different times, or only one of them: all stop together.
        result = all_reduce_fields(own_result, job)
        notes = plans.learn(result.pass_times)
        elapsed_ms = 1e3 * (time.perf_counter() - start_s)
        traced = list[RankTrace]()
        if traces.are_wanted(result):
            traced = job.gather((executed.taken.data, executed.trace))
        if log:
            log.note(iteration, notes)
            log.add(result, executed.taken.samples, traced, elapsed_ms)
        n_done = iteration + 1
        # Before the checkpoint, which is kept if this state is the best.
        evaluation_signal = evaluations.run_if_due(n_done)
        checkpoints.save_if_due(n_done)
        rank.position.enter(Phase.REPORTS, iteration)
        stop_signal = result.stop_signal or evaluation_signal
        if not stop_signal:
            checkpoints.check_time(elapsed_ms)
    if log:
        log.flush()  # no checkpoint is complete before the log of its iterations
    has_trained = n_done > plans.iterations.start
    checkpoints.end(n_done, stopped=bool(stop_signal), changed=has_trained)
    is_unfinished = n_done < plans.iterations.stop or evaluations.were_interrupted
    return stop_signal if is_unfinished else 0
