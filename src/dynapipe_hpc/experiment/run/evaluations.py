"""Forward passes of all ranks of a run over samples: its evaluations, and its references."""

import time
from collections import Counter
from collections.abc import Collection, Sequence
from typing import assert_never

import numpy as np
import numpy.typing as npt

from dynapipe_hpc.data.errors import InputError
from dynapipe_hpc.data.sample import Sample
from dynapipe_hpc.experiment.experiment import Experiment
from dynapipe_hpc.experiment.reference_pass import ReferencePass, ids_of, reference_passes
from dynapipe_hpc.experiment.run.open_run import LossHistory, OpenRun
from dynapipe_hpc.experiment.run.plans import check_same_plans
from dynapipe_hpc.experiment.run.rank import Rank
from dynapipe_hpc.experiment.run.run_log import RunLog
from dynapipe_hpc.job.job import Job
from dynapipe_hpc.plan.codec import decode, encode_plans, plans_hash
from dynapipe_hpc.report.records import EvaluationRecord, PreferenceMeans, TaskLoss
from dynapipe_hpc.training.config import LossWeighting
from dynapipe_hpc.training.huggingface.origin import HASH_FACT
from dynapipe_hpc.training.objective import PreferenceLoss, losses_of_tables
from dynapipe_hpc.training.token_loader import TokenLoader

FloatArray = npt.NDArray[np.float64]

BATCHES_PER_RANK = 4
"""Batches that a rank plans before they are executed and the results are written."""


class StopAskedError(Exception):
    """The run was asked to stop during forward passes; all ranks raise it at the same batch."""

    def __init__(self, stop_signal: int) -> None:
        super().__init__(stop_signal)
        self.stop_signal = stop_signal


def plan_forward(
    job: Job, experiment: Experiment, batches: Sequence[Sequence[Sample]], what: str
) -> list[bytes]:
    """This rank's encoded plans of the forward passes of batches; all ranks together.

    The ranks take turns to plan batches, and then exchange the plans. Messages begin with `what`.
    """
    cluster, batch = experiment.config.cluster, experiment.config.planner.batch
    planner = experiment.planner.of_evaluation(batch)
    made = []
    with job.fail_together():
        for k in range(job.rank, len(batches), job.size):
            try:
                made.append(encode_plans(planner.make_plans(k, batches[k])))
            except InputError as error:
                raise InputError(f"{what}: {error}") from error
    shares = [[plans[cluster.plan_of(rank)] for plans in made] for rank in range(job.size)]
    received = job.exchange(shares)
    plans = [received[k % job.size][k // job.size] for k in range(len(batches))]
    for k, plan in enumerate(plans):
        check_same_plans(job, k, plans_hash(plan))
    return plans


def run_forward(
    rank: Rank,
    loader: TokenLoader,
    samples: Sequence[Sample],
    plans: Sequence[bytes],
    *,
    n_done: int,
) -> FloatArray:
    """Executes this rank's encoded plans of samples without backward passes; all ranks together.

    Returns the table of the samples, see `ModuleStage.evaluating`, on all ranks. Raises
    `StopAskedError`.
    """
    job = rank.job
    with rank.stage.evaluating(loader, samples) as table:
        for data in plans:
            # All ranks stop at the same batch, or those that continue would wait forever.
            [stop_signal] = job.all_reduce_max([job.stop.asked])
            if stop_signal:
                raise StopAskedError(int(stop_signal))
            rank.run_forward(n_done, decode(data))
        own_table = table * rank.reports_loss
    # Every sample was computed by one replica, so that the order of sums does not matter.
    return np.array(job.all_reduce_sum(own_table.flatten().tolist())).reshape(2, -1)


def train_preferences(rank: Rank, experiment: Experiment, run: OpenRun) -> FloatArray:
    """Lets the stage of this rank train on preference pairs; all ranks together.

    When a run begins, the weights of the rank are the weights of the reference.

    Returns the reference of the dataset that is evaluated, see `find_reference`.
    """
    with rank.job.fail_together():
        passes = reference_passes(experiment, str(run.facts[HASH_FACT]), run.output)
    begins = run.point is None
    tables = [find_reference(rank, experiment, each, begins=begins) for each in passes]
    config = experiment.config.training.preference_loss
    assert config is not None  # noqa: S101 - types
    rank.stage.train_preferences(PreferenceLoss(config, tables[0], rank.device))
    return tables[-1]  # of the evaluated dataset, or of the only one


def find_reference(
    rank: Rank, experiment: Experiment, reference: ReferencePass, *, begins: bool
) -> FloatArray:
    """Log-probabilities of pairs' answers by the model before training; all ranks together.

    They are read from a file. If the run `begins`, missing ones are computed by plans of forward
    passes and written to the file, from which an interrupted run continues.

    Shape (samples of the dataset, 2), NaN for other samples. Raises `StopAskedError`; `SystemExit`:
    The file cannot be used, or a batch cannot be planned; the first rank has said why.
    """
    job = rank.job
    file = reference.file

    def read() -> FloatArray:
        known = file.read()
        if not begins and reference.missing(known):
            raise reference.lack_error()
        return known

    known = job.on_first(read)
    if not (missing := reference.missing(known)):
        return known
    started_s = time.perf_counter()
    job.say(f"reference: {len(missing):,} batches, into {file.path}")
    loader = rank.open_loader(reference.dataset)
    at_once = BATCHES_PER_RANK * job.size
    for first in range(0, len(missing), at_once):
        group = missing[first : first + at_once]
        samples = [sample for batch in group for sample in batch]
        plans = plan_forward(job, experiment, group, "reference")
        loader.start_iteration(samples)
        log_probs = run_forward(rank, loader, samples, plans, n_done=0)
        known[ids_of(samples)] = log_probs.T
        job.on_first(lambda: file.write(known))
    took_s = time.perf_counter() - started_s
    n_pairs = sum(map(len, missing))
    n_before = reference.n_pairs - n_pairs
    before = f", {n_before:,} before" if n_before else ""
    job.say(f"reference: {n_pairs:,} pairs in {took_s:,.1f} s{before}")
    return known


class Evaluations:
    """Evaluations of a run, if it has any. All ranks make the same calls.

    `were_interrupted` says whether the run was asked to stop while it evaluated; `history` has the
    losses so far, and whether training should end.
    """

    def __init__(
        self,
        rank: Rank,
        experiment: Experiment,
        *,
        history: LossHistory | None,
        log: RunLog | None,
        reference: FloatArray | None = None,
    ) -> None:
        """Plans the batches; continues after the evaluations in `history`.

        `log` is the first rank's log. Preference pairs need their `reference`, see
        `find_reference`.
        """
        self._rank, self._log, self.history = rank, log, history or LossHistory(0)
        self._config, self._reference = experiment.config, reference
        self.were_interrupted = False
        if evaluated := experiment.evaluation:
            self._samples, self._names = evaluated.samples, evaluated.dataset.header.task_names
            self._loader = rank.open_loader(evaluated.dataset)
            self._loader.start_iteration(self._samples)
            # All evaluations of a run have the same samples, so they have the same plans.
            self._plans = plan_forward(rank.job, experiment, evaluated.batches, "evaluation")

    def run_if_due(self, n_done: int) -> int:
        """Evaluates if that is due; returns the signal that asked the run to stop meanwhile, or 0.

        An evaluation in which the run is asked to stop has no result. It is repeated when the run
        continues.
        """
        table = self._config.evaluation
        if table is None or n_done in self.history:
            return 0
        if not table.is_due(n_done, self._config.training.n_iterations):
            return 0
        try:
            result = self.evaluate(n_done)
        except StopAskedError as stop:
            self.were_interrupted = True
            return stop.stop_signal
        is_best = self.history.add(n_done, result.loss)
        if self._log:
            self._log.add_evaluation(result, is_best=is_best)
            if self.history.is_over:
                self._log.print_line(f"training ends early: {self.history.describe()}")
        return 0

    def evaluate(self, n_done: int) -> EvaluationRecord:
        """Evaluates the current weights, on all ranks together; all return the record.

        Raises `StopAskedError`.
        """
        started_s = time.perf_counter()
        table = run_forward(self._rank, self._loader, self._samples, self._plans, n_done=n_done)
        took_ms = self._rank.job.broadcast(1e3 * (time.perf_counter() - started_s))
        means = None
        training = self._config.training
        if self._reference is not None and (config := training.preference_loss):
            known = self._reference[ids_of(self._samples)]
            lengths = [(each.target_tokens, each.rejected_tokens) for each in self._samples]
            losses, numbers = losses_of_tables(table.T, known, lengths, config)
            means = PreferenceMeans.from_sums(numbers, len(self._samples))
            table = np.stack([losses, np.ones_like(losses)])
        sums, counts = table
        by_task = task_losses(self._samples, sums, counts)
        named = {self._names[task]: loss for task, loss in sorted(by_task.items())}
        loss = mean_loss(sums, counts, by_task.values(), training.loss_weighting)
        return EvaluationRecord(n_done, loss, took_ms, named, means)


def mean_loss(
    sums: FloatArray, counts: FloatArray, tasks: Collection[TaskLoss], weighting: LossWeighting
) -> float:
    """Loss of an evaluation in which units have equal weight, see `token_weights`.

    `sums`, `counts`: Sum of the losses and number of target tokens of each sample, (n_samples,).
    """
    match weighting:
        case "token":
            return float(sums.sum() / counts.sum())
        case "sample":
            return float((sums / counts).mean())
        case "task":
            return sum(task.loss for task in tasks) / len(tasks)
        case _:
            assert_never(weighting)


def task_losses(
    samples: Sequence[Sample], sums: FloatArray, counts: FloatArray
) -> dict[int, TaskLoss]:
    """Losses by task id; `sums` and `counts` as for `mean_loss`."""
    losses, tokens = Counter[int](), Counter[int]()
    for sample, loss, count in zip(samples, sums.tolist(), counts.tolist(), strict=True):
        losses[sample.task_id] += loss
        tokens[sample.task_id] += int(count)
    return {task: TaskLoss(losses[task] / n, n) for task, n in tokens.items()}
