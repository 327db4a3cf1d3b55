"""One evaluation of a run's model."""

import time
from collections import Counter
from collections.abc import Collection, Sequence
from typing import assert_never

import numpy as np

from dynapipe_hpc.data.sample import Sample
from dynapipe_hpc.experiment.evaluation_samples import EvaluationSamples
from dynapipe_hpc.experiment.experiment import Experiment
from dynapipe_hpc.experiment.run.forward_passes import FloatArray, plan_forward, run_forward
from dynapipe_hpc.experiment.run.training_rank import TrainingRank
from dynapipe_hpc.report.evaluation_record import EvaluationRecord, TaskLoss
from dynapipe_hpc.report.preference_means import PreferenceMeans
from dynapipe_hpc.training.config import LossWeighting
from dynapipe_hpc.training.preferences import losses_of_tables


class Evaluator:
    """Evaluates the model of a run: executes the plans of all batches, forward passes only."""

    def __init__(
        self,
        rank: TrainingRank,
        experiment: Experiment,
        samples: EvaluationSamples,
        reference: FloatArray | None = None,
    ) -> None:
        """Plans the batches; all ranks together.

        Args:
            rank: This rank.
            experiment: The experiment.
            samples: The samples that are evaluated.
            reference: Log-probabilities of the answers of preference pairs by the model before
                training, by sample id, see `find_reference`; None if samples are no pairs.

        Raises:
            SystemExit: A batch cannot be planned; the first rank has said why.
        """
        self._rank = rank
        self._samples, self._names = samples.samples, samples.dataset.task_names
        self._training, self._reference = experiment.config.training, reference
        self._loader = rank.worker.open_loader(samples.dataset)
        self._loader.start_iteration(self._samples)
        # All evaluations of a run have the same samples, so they have the same plans.
        self._plans = plan_forward(rank.job, experiment, samples.batches, "evaluation")

    def evaluate(self, n_done: int) -> EvaluationRecord | int:
        """Evaluates the current weights; all ranks together.

        Args:
            n_done: Number of iterations done.

        Returns:
            The record, on all ranks; the signal if the run was asked to stop meanwhile.
        """
        started_s = time.perf_counter()
        table = run_forward(self._rank, self._loader, self._samples, self._plans, n_done=n_done)
        if isinstance(table, int):
            return table
        took_ms = self._rank.job.broadcast(1e3 * (time.perf_counter() - started_s))
        return self._record(n_done, table, took_ms)

    def _record(self, n_done: int, table: FloatArray, took_ms: float) -> EvaluationRecord:
        means = None
        if self._reference is not None:
            losses, means = self._preferences(table, self._reference)
            table = np.stack([losses, np.ones_like(losses)])
        sums, counts = table
        by_task = task_losses(self._samples, sums, counts)
        named = {self._names[task]: loss for task, loss in sorted(by_task.items())}
        loss = mean_loss(sums, counts, by_task.values(), self._training.loss_weighting)
        return EvaluationRecord(n_done, loss, took_ms, named, means)

    def _preferences(
        self, log_probs: FloatArray, reference: FloatArray
    ) -> tuple[FloatArray, PreferenceMeans | None]:
        """Losses of preference pairs, and means over them, from log-probabilities of answers."""
        config = self._training.preference_loss
        assert config is not None  # noqa: S101 - types
        ids = [sample.sample_id for sample in self._samples]
        lengths = [(sample.target_tokens, sample.rejected_tokens) for sample in self._samples]
        losses, numbers = losses_of_tables(log_probs.T, reference[ids], lengths, config)
        return losses, PreferenceMeans.from_sums(numbers, len(ids))


def mean_loss(
    sums: FloatArray, counts: FloatArray, tasks: Collection[TaskLoss], weighting: LossWeighting
) -> float:
    """Loss of an evaluation in which units have equal weight, see `token_weights`.

    Args:
        sums: Sum of the losses of each sample's target tokens, shape (n_samples,).
        counts: Number of these tokens, shape (n_samples,).
        tasks: Losses of the tasks of the samples.
        weighting: Unit of equal weight.
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
    """Losses by task id.

    Args:
        samples: The samples.
        sums: Sum of the losses of each sample's target tokens, shape (n_samples,).
        counts: Number of these tokens, shape (n_samples,).
    """
    losses, tokens = Counter[int](), Counter[int]()
    for sample, loss, count in zip(samples, sums.tolist(), counts.tolist(), strict=True):
        losses[sample.task_id] += loss
        tokens[sample.task_id] += int(count)
    return {task: TaskLoss(losses[task] / n, n) for task, n in tokens.items()}
