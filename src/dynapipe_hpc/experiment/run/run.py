"""The run: every rank executes its plans, and a thread writes checkpoints meanwhile."""

import time
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import nullcontext
from dataclasses import dataclass, replace
from pathlib import Path
from signal import Signals
from statistics import median

from dynapipe_hpc.data.errors import RunError, escaped, warn
from dynapipe_hpc.experiment.experiment import Experiment
from dynapipe_hpc.experiment.rank.devices import find_device, prepare_for_host
from dynapipe_hpc.experiment.run.evaluations import Evaluations, StopAskedError, train_preferences
from dynapipe_hpc.experiment.run.iteration import (
    IterationResult,
    RankTrace,
    all_reduce_fields,
)
from dynapipe_hpc.experiment.run.open_run import LossHistory, OpenRun, is_complete
from dynapipe_hpc.experiment.run.plans import OnlineCosts, Plans
from dynapipe_hpc.experiment.run.rank import Rank, run_largest_first, runs_largest_first
from dynapipe_hpc.experiment.run.run_log import RunLog
from dynapipe_hpc.experiment.run_lock import locked
from dynapipe_hpc.experiment.watch.rank_status import Phase, Position
from dynapipe_hpc.job.job import Job
from dynapipe_hpc.job.ranks import JobOutcome
from dynapipe_hpc.job.slurm import STOPPED, end_stopped
from dynapipe_hpc.store.mpi import MpiPlanStore
from dynapipe_hpc.store.plan_store import PlannerFailedError
from dynapipe_hpc.training.checkpoint.config import CheckpointConfig
from dynapipe_hpc.training.checkpoint.folder import CheckpointFolder, Description, Facts
from dynapipe_hpc.training.checkpoint.parts import StatePart, TrainingState, write_parts

_N_COUNTED = 9
SIGNAL_S = 300.0
"""Time between a signal to stop and the kill that slurm/run.sbatch asks Slurm for."""


@dataclass(frozen=True, slots=True)
class _Outcome:
    """Result of writing a rank's parts: their checksum or an error, and the time it took."""

    took_s: float
    checksum: str = ""
    error: str = ""


class Checkpoints:
    """Checkpoints of a run, one at a time. All ranks make the same calls.

    Training stops only to copy the state; a thread writes the copy. While it does, the ranks
    tell each other after every iteration, in one number each, whether they have finished; when
    all have, the first rank completes the checkpoint. If a checkpoint cannot be written, it is
    dropped with a warning; earlier ones are kept, and training continues.
    """

    def __init__(
        self,
        job: Job,
        config: CheckpointConfig,
        folder: CheckpointFolder,
        state: TrainingState,
        *,
        facts: Facts,
        position: Position,
        check_lock: Callable[[], None],
        costs: OnlineCosts | None = None,
        history: LossHistory | None = None,
    ) -> None:
        """Checkpoints the `state` of training on this rank into `folder`.

        `facts` must be the same when a checkpoint is loaded. `position` tells the watchdog that
        this rank saves; `check_lock` raises `RunError` on the first rank if it may not write. The
        `history` of evaluations tells which state is the best, if that is to be kept.
        """
        self._job, self._config, self._folder = job, config, folder
        self._position, self._check_lock = position, check_lock
        self._state, self._facts, self._costs = state, facts, costs
        self._history = history if config.keep_best else None
        self._writer = ThreadPoolExecutor(1, "checkpoints")
        self._n_bytes = 0  # of a checkpoint, which all ranks write
        # A checkpoint whose parts some rank may still be writing, and how this rank ends with it.
        self._pending: tuple[Description, Future[_Outcome]] | None = None
        self._n_begun = -1
        self._error: Future[str] = Future()
        self._error.set_result("")
        self._iterations_s: deque[float] = deque(maxlen=_N_COUNTED)
        self._has_warned = False
        self.took_s = 0.0  # on the slowest rank, and to complete it; known on the first

    def save_if_due(self, n_done: int) -> None:
        """Begins a checkpoint if one is due; to be called when `n_done` iterations are done."""
        if self._pending and all(self._job.all_gather_int(int(self._pending[1].done()))):
            self._conclude()
        if self._history:
            self._folder.best = self._history.best
        is_best = self._history is not None and self._history.best == n_done
        if is_best or (self._config.every and n_done % self._config.every == 0):
            self._begin(n_done)

    def save_now(self, n_done: int) -> None:
        """Returns when a checkpoint of this state is complete, if any are configured."""
        if not self._config.is_on:
            return
        if self._n_begun != n_done:
            self._begin(n_done)
        error = self.finish()
        with self._job.fail_together():
            if error:
                raise RunError(f"the last checkpoint could not be written: {error}")

    def check_time(self, iteration_ms: float) -> None:
        """Warns, once, of a checkpoint that takes too long; called after each iteration.

        The median of iteration times counts, so that a single long iteration has no effect.
        """
        self._iterations_s.append(1e-3 * iteration_ms)
        checkpoint_s, every = self.took_s, self._config.every
        iteration_s = median(self._iterations_s)
        interval_s, stop_s = every * iteration_s, iteration_s + checkpoint_s
        problem = ""
        if stop_s > SIGNAL_S:
            problem = (
                f"an iteration and a checkpoint take {stop_s:.1f} s: under a scheduler that asks a "
                f"run to stop {SIGNAL_S:.0f} s before it kills it, as slurm/run.sbatch does, the "
                "last state would be lost; let it ask earlier (--signal=USR1@SECONDS)"
            )
        elif 0 < interval_s < checkpoint_s:
            problem = (
                f"a checkpoint takes {checkpoint_s:.1f} s, but checkpoint.every = {every} "
                f"iterations take only {interval_s:.1f} s, so training waits; raise "
                "checkpoint.every"
            )
        if problem and checkpoint_s and not self._has_warned:
            self._has_warned = True
            warn(problem)

    def end(self, n_done: int, *, stopped: bool, changed: bool = True) -> None:
        """Returns when all checkpoints are complete, including the last one if one is wanted.

        `stopped` means that the run is to continue later, `changed` means that an iteration was
        executed: else a checkpoint already has everything.
        """
        if changed and (stopped or self._config.last):
            self.save_now(n_done)
        else:
            self.finish()

    def finish(self) -> str:
        """Waits for the checkpoint begun last; returns its error, or an empty string."""
        self._position.enter(Phase.SAVES, max(self._n_begun, 0))
        self._conclude()
        return self._job.broadcast(self._error.result() if self._job.is_first else "")

    def _begin(self, n_done: int) -> None:
        self._position.enter(Phase.SAVES, n_done)
        self._conclude()
        self._n_begun = n_done
        parts, counters = self._state.snapshot(), self._state.counters
        own_bytes = sum(part.values.nbytes for part in parts)
        self._n_bytes = sum(self._job.all_gather_int(own_bytes))
        if self._job.broadcast(self._lacks_room(n_done) if self._job.is_first else False):
            return
        outcome = self._writer.submit(self._write, n_done, parts)
        online = self._costs.state if self._costs else ()
        self._pending = Description(n_done, counters, self._facts, (), online), outcome

    def _lacks_room(self, n_done: int) -> bool:
        # The checkpoint before it, once complete, has removed old ones; if it failed, this raises.
        self._error.result()
        try:
            self._folder.check_room(self._n_bytes)
        except RunError as error:
            self._error = Future()
            self._error.set_result(self._give_up(n_done, str(error)))
            return True
        return False

    def _write(self, n_done: int, parts: list[StatePart]) -> _Outcome:
        started_s = time.perf_counter()
        try:
            folder = self._folder.begin(n_done)
            checksum = write_parts(folder, self._job.rank, parts)
        except RunError as error:
            return _Outcome(time.perf_counter() - started_s, error=str(error))
        return _Outcome(time.perf_counter() - started_s, checksum)

    def _conclude(self) -> None:
        """Waits for all ranks' parts of a pending checkpoint, which the first rank completes."""
        if self._pending is None:
            return
        (description, outcome), self._pending = self._pending, None
        self._position.enter(Phase.SAVES, description.n_done)
        outcomes = self._job.gather(outcome.result())
        # Otherwise a rank that continues would wait for the others inside an instruction.
        self._job.barrier()
        if self._job.is_first:
            self._error = self._writer.submit(self._complete, description, outcomes)

    def _complete(self, description: Description, outcomes: list[_Outcome]) -> str:
        """Completes a checkpoint on the first rank; returns its error, or an empty string."""
        self._check_lock()
        started_s = time.perf_counter()
        errors = dict.fromkeys(outcome.error for outcome in outcomes if outcome.error)
        checksums = tuple(outcome.checksum for outcome in outcomes)
        if errors:
            return self._give_up(description.n_done, "; ".join(errors))
        try:
            path = self._folder.finish(replace(description, part_checksums=checksums))
        except RunError as error:
            return self._give_up(description.n_done, str(error))
        slowest_s = max(outcome.took_s for outcome in outcomes)
        self.took_s = slowest_s + time.perf_counter() - started_s
        line = f"checkpoint {path}: {self._n_bytes:,} bytes in {self.took_s:.1f} s\n"
        print(escaped(line), end="", flush=True)
        return ""

    def _give_up(self, n_done: int, error: str) -> str:
        self._folder.discard(n_done)
        warn(f"no checkpoint after {n_done} iterations, earlier ones are kept: {error}")
        return error


def run_experiment(job: Job, experiment: Experiment, output: Path) -> int:
    """Trains as a configuration says; all ranks together.

    The run folder is created, or continued from its newest checkpoint.

    Returns the exit code: 0, or 75 if the run was asked to stop before its last iteration. Raises
    `SystemExit`: Costs were measured on another kind of device, the device cannot be used, another
    run writes the folder, or a planner failed; the first rank has said why. Raises `RunError`:
    Training cannot continue.
    """
    host = prepare_for_host(job, experiment)
    # Before the lock: a device that cannot be used begins no run folder.
    with job.fail_together():
        device = find_device(job, experiment.config)
    with locked(job, output) as lock:
        run = OpenRun(job, experiment, output, lock)
        if is_complete(run.iterations, run.history):
            job.say(run.describe_complete())
            return 0
        with run.records({"device": host.gpu_name or "cpu", "attention": host.attention}):
            job.say(f"attention kernels: {host.attention}")
            for line in experiment.data_lines if job.is_first else ():
                job.say(line)
            with Rank(job, experiment, device) as rank:
                rank.start_at(run.point, run.output)
                stop_signal = _train(job, experiment, run, rank)
        if job.is_first:
            how, message = JobOutcome.COMPLETED, run.describe_end()
            if stop_signal:
                how, message = JobOutcome.STOPPED, f"stopped by {Signals(stop_signal).name}"
            job.ending.record(how, STOPPED if stop_signal else 0, message)
    # The folder is free before Slurm may start the job again.
    return end_stopped(job, stop_signal) if stop_signal else 0


def _train(job: Job, experiment: Experiment, run: OpenRun, rank: Rank) -> int:
    """Plans and executes what is left; returns the signal that stopped the run, or 0."""
    config = experiment.config
    store = MpiPlanStore(
        job.comm,
        config.store.look_ahead,
        config.store.plan_bytes,
        first_iteration=run.iterations.start,
        progress=config.store.progress,
    )
    job.say(str(store.progress))
    plans = Plans(
        job,
        experiment,
        run.iterations,
        rank.loader,
        store=store,
        quiet_period=run.quiet_period,
        known_costs=run.point.description.online if run.point else (),
    )
    # Without checkpoints nothing could be saved, so a signal ends the job as usual.
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
            costs=plans.costs,
            history=run.history,
        )
        reference = None
        if config.training.preference_loss:
            try:
                reference = train_preferences(rank, experiment, run)
            except StopAskedError as stop:
                return stop.stop_signal
        evaluations = Evaluations(
            rank, experiment, history=run.history, log=run.log, reference=reference
        )
        # Before an evaluation, which may take long: it needs less memory than training.
        on_gpus = rank.device.type != "cpu"
        if runs_largest_first(config, on_gpus=on_gpus) and (
            line := run_largest_first(rank, plans, config)
        ):
            job.say(line)
        n_traced = config.report.trace_iterations
        return train(rank, plans, run.log, evaluations, checkpoints=checkpoints, n_traced=n_traced)


def train(
    rank: Rank,
    plans: Plans,
    log: RunLog | None,
    evaluations: Evaluations,
    *,
    checkpoints: Checkpoints,
    n_traced: int,
) -> int:
    """Executes the remaining iterations; all ranks together, the first with a log.

    The first `n_traced` iterations of the run are traced.

    Returns the signal that stopped the run before its end; 0 if there was none.
    """
    job, costs, n_done = rank.job, plans.costs, plans.iterations.start
    # An evaluation that an earlier run could not finish, or the first.
    stop_signal = evaluations.run_if_due(n_done)
    for iteration in plans.iterations:
        if stop_signal or evaluations.history.is_over:
            break
        start_s = time.perf_counter()
        try:
            taken, trace = rank.execute(iteration, plans)
        except PlannerFailedError:
            # A plan is lacking on all ranks or on none, so they end together.
            checkpoints.finish()
            with job.fail_together():
                raise
        own_result = replace(
            IterationResult.from_rank(taken, trace, is_first_shard=rank.is_first_shard),
            stop_signal=int(job.stop.asked),
            pass_times=costs.pass_times(taken.plan, trace, rank.is_first_shard) if costs else (),
        )
        # Ranks may receive a signal at different times, or only one of them: all stop together.
        result = all_reduce_fields(own_result, job)
        notes = costs.add(result.pass_times) if costs else []
        elapsed_ms = 1e3 * (time.perf_counter() - start_s)
        traced = list[RankTrace]()
        if iteration < n_traced:
            traced = job.gather((taken.data, trace))
        if log:
            for note in notes:
                log.print_line(f"iteration {iteration}: {note}")
            log.add(result, taken.samples, traced, elapsed_ms)
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
