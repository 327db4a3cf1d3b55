"""One evaluation of a run's model."""

import time
from collections import Counter
from collections.abc import Collection, Sequence
from typing import assert_never

import numpy as np
import numpy.typing as npt

from dynapipe_hpc.data.dataset.long_samples import reader_of, trained_tokens_of
from dynapipe_hpc.data.sample import Sample
from dynapipe_hpc.executor.run import launch_plan
from dynapipe_hpc.experiment.evaluation_samples import EvaluationSamples
from dynapipe_hpc.experiment.experiment import Experiment
from dynapipe_hpc.experiment.run.plan_evaluation import plan_evaluation
from dynapipe_hpc.experiment.run.training_rank import TrainingRank
from dynapipe_hpc.plan.codec import decode
from dynapipe_hpc.report.evaluation_record import EvaluationRecord, TaskLoss
from dynapipe_hpc.training.config import LossWeighting
from dynapipe_hpc.training.token_loader import TokenLoader

FloatArray = npt.NDArray[np.float64]


class Evaluator:
    """Evaluates the model of a run: executes the plans of all batches, forward passes only."""

    def __init__(
        self, rank: TrainingRank, experiment: Experiment, samples: EvaluationSamples
    ) -> None:
        """Plans the batches; all ranks together.

        Raises:
            SystemExit: A batch cannot be planned; the first rank has said why.
        """
        self._rank = rank
        self._samples, self._names = samples.samples, samples.dataset.task_names
        self._weighting = experiment.config.training.loss_weighting
        config, dataset = experiment.config, samples.dataset
        predicts_inputs = not config.model.has_target_rows
        self._loader = TokenLoader(
            reader_of(dataset, config.data),
            dataset.start_id,
            self._weighting,
            rank.worker.collate,
            trained=trained_tokens_of(dataset, config.data, predicts_inputs=predicts_inputs),
        )
        self._loader.start_iteration(self._samples)
        self._plans = plan_evaluation(rank.job, experiment, samples)

    def evaluate(self, n_done: int) -> EvaluationRecord | int:
        """Evaluates the current weights; all ranks together.

        Args:
            n_done: Number of iterations done.

        Returns:
            The record, on all ranks; the signal if the run was asked to stop meanwhile.
        """
        started_s = time.perf_counter()
        rank, worker, job = self._rank, self._rank.worker, self._rank.job
        with worker.stage.evaluating(self._loader, self._samples) as losses:
            for data in self._plans:
                # All ranks stop at the same batch, or those that go on would wait forever.
                [stop_signal] = job.all_reduce_max([job.stop.asked])
                if stop_signal:
                    return int(stop_signal)
                rank.position.start_plan(n_done, data)
                transport, clock = worker.channels.transport, worker.clock
                launch_plan(
                    decode(data), worker.stage, transport, clock, progress=rank.progress
                ).finish()
            own_losses = losses * worker.reports_loss
        # Every sample was evaluated by one replica, so that the order of sums does not matter.
        sums, counts = np.array(job.all_reduce_sum(own_losses.flatten().tolist())).reshape(2, -1)
        took_ms = job.broadcast(1e3 * (time.perf_counter() - started_s))
        return self._record(n_done, sums, counts, took_ms)

    def _record(
        self, n_done: int, sums: FloatArray, counts: FloatArray, took_ms: float
    ) -> EvaluationRecord:
        by_task = task_losses(self._samples, sums, counts)
        named = {self._names[task]: loss for task, loss in sorted(by_task.items())}
        loss = mean_loss(sums, counts, by_task.values(), self._weighting)
        return EvaluationRecord(n_done, loss, took_ms, named)


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
