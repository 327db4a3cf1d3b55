"""The training loop of one rank, and what is prepared for it."""

import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from dynapipe_hpc.experiment.experiment import Experiment
from dynapipe_hpc.experiment.run.checkpoints import Checkpoints
from dynapipe_hpc.experiment.run.evaluations import plan_evaluations
from dynapipe_hpc.experiment.run.largest_first import run_largest_first, runs_largest_first
from dynapipe_hpc.experiment.run.log import Log
from dynapipe_hpc.experiment.run.online_costs import Costs
from dynapipe_hpc.experiment.run.references import train_preferences
from dynapipe_hpc.experiment.run.run_parts import RunParts
from dynapipe_hpc.experiment.run.run_start import RunStart
from dynapipe_hpc.experiment.run.traces import Traces
from dynapipe_hpc.experiment.run.training_rank import TrainingRank
from dynapipe_hpc.experiment.watch.position import Phase
from dynapipe_hpc.job.job import Job
from dynapipe_hpc.store.plan_store import PlannerFailedError


def train(rank: TrainingRank, parts: RunParts) -> int:
    """Executes the iterations that are left; all ranks together.

    Args:
        rank: This rank.
        parts: What the run does beside training.

    Returns:
        The signal that stopped the run before its end; 0 if there was none.
    """
    iterations = rank.iterations
    n_done = iterations.start
    # An evaluation that an earlier run could not finish, or the first.
    stop_signal = parts.evaluations.run_if_due(n_done)
    if parts.evaluations.is_best(n_done):
        parts.checkpoints.keep_as_best(n_done)
    for iteration in iterations:
        if stop_signal or parts.evaluations.have_ended_training:
            break
        start_s = time.perf_counter()
        with _ending_together(rank.job, parts.checkpoints):
            executed = rank.execute(iteration)
        # Ranks may receive a signal at different times, or only one of them: all stop together.
        result = parts.own_result(executed, rank.job.stop).all_reduce(rank.job)
        parts.log.note(iteration, parts.costs.add(result.pass_times))
        elapsed_ms = 1e3 * (time.perf_counter() - start_s)
        traces = parts.traces.gather_if_wanted(executed, result)
        parts.log.add(result, executed.taken.samples, traces, elapsed_ms)
        n_done = iteration + 1
        # Before the checkpoint, which is kept if this state is the best.
        evaluation_signal = parts.evaluations.run_if_due(n_done)
        parts.checkpoints.save_if_due(n_done, is_best=parts.evaluations.is_best(n_done))
        rank.position.enter(Phase.REPORTS, iteration)
        stop_signal = result.stop_signal or evaluation_signal
        if not stop_signal:
            parts.checkpoints.check_time(elapsed_ms)
    parts.log.flush()  # no checkpoint is complete before the log of its iterations
    has_trained = n_done > iterations.start
    parts.checkpoints.end(n_done, stopped=bool(stop_signal), changed=has_trained)
    is_unfinished = n_done < iterations.stop or parts.evaluations.were_interrupted
    return stop_signal if is_unfinished else 0


def train_experiment(
    rank: TrainingRank,
    experiment: Experiment,
    start: RunStart,
    output: Path,
    *,
    costs: Costs,
    checkpoints: Checkpoints,
    log: Log,
) -> int:
    """Trains from where the run starts, with what is done beside it; all ranks together.

    Args:
        rank: This rank.
        experiment: The experiment.
        start: The point where the run starts.
        output: The run folder.
        costs: Costs that iterations are planned by.
        checkpoints: Checkpoints of the run.
        log: Log of the run.

    Returns:
        The signal that stopped the run before its end; 0 if there was none.

    Raises:
        SystemExit: Evaluations or the reference of preferences cannot be planned; the first rank
            has said why.
    """
    config = experiment.config
    reference = None
    if preferences := config.training.preference_loss:
        references = train_preferences(
            rank,
            experiment,
            preferences,
            weights_hash=start.weights_hash,
            begins=start.point is None,
            output=output,
        )
        if isinstance(references, int):
            return references
        reference = references.evaluated
    parts = RunParts(
        costs=costs,
        traces=Traces(rank.job, config, output, rank.planning.activity),
        # All ranks plan these together, while their threads plan the first iterations.
        evaluations=plan_evaluations(rank, experiment, start.history, log, reference=reference),
        checkpoints=checkpoints,
        log=log,
    )
    # Before an evaluation, which may take long: it needs less memory than training.
    if runs_largest_first(config, on_gpus=rank.worker.device.type != "cpu"):
        line = run_largest_first(rank, config)
        if line and rank.job.is_first:
            print(line, flush=True)
    return train(rank, parts)


@contextmanager
def _ending_together(job: Job, checkpoints: Checkpoints) -> Iterator[None]:
    """Ends the run on all ranks if an iteration cannot be planned.

    `PlanAhead` fails an iteration on all ranks or none, so they complete a checkpoint together.
    """
    try:
        yield
    except PlannerFailedError:
        checkpoints.finish()
        with job.fail_together():
            raise
