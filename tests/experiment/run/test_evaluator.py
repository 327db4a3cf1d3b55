"""The loss of an evaluation from the losses of its samples."""

from pathlib import Path

import numpy as np
import pytest
from mpi4py import MPI
from tests.examples.tokenized import write_samples
from tests.jobs.tiny_experiment import tiny_experiment

from dynapipe_hpc.data.sample import Sample
from dynapipe_hpc.experiment.config import ExperimentConfig
from dynapipe_hpc.experiment.experiment import Experiment
from dynapipe_hpc.experiment.rank.devices import CPU, RankDevice
from dynapipe_hpc.experiment.run.evaluations import Evaluations, mean_loss, task_losses
from dynapipe_hpc.experiment.run.rank import Rank
from dynapipe_hpc.job.job import Job
from dynapipe_hpc.report.records import EvaluationRecord, TaskLoss
from dynapipe_hpc.training.config import LossWeighting

SAMPLES = [Sample(7, 3, 2, task_id=4), Sample(3, 1, 1, task_id=1), Sample(9, 0, 5, task_id=4)]
SUMS, COUNTS = np.array([4.0, 3.0, 5.0]), np.array([2.0, 1.0, 5.0])


@pytest.mark.parametrize(("loss_on", "n_tokens"), [("marked", 3), ("targets", 2), ("all", 5)])
def test_an_evaluation_counts_the_tokens_that_training_counts(
    loss_on: str, n_tokens: int, tmp_path: Path
) -> None:
    path = write_samples(tmp_path / "x.h5", spans=[[(0, 2), (3, 4)], [], []])
    tables = tiny_experiment().model_dump()
    tables["data"] |= {"dataset": str(path), "loss_on": loss_on}
    tables["evaluation"] = {"dataset": str(path), "tokens": 100}
    experiment = Experiment(ExperimentConfig.model_validate(tables)).open()
    rank = Rank(Job(MPI.COMM_SELF), experiment, RankDevice(CPU))
    found = Evaluations(rank, experiment, history=None, log=None).evaluate(0)
    assert isinstance(found, EvaluationRecord)
    of_others = {"all": 5}.get(loss_on, 4)  # of a sample without marks
    assert found.tasks["sum"].tokens == n_tokens + of_others


def test_the_loss_of_a_task_is_that_of_its_tokens() -> None:
    assert task_losses(SAMPLES, SUMS, COUNTS) == {4: TaskLoss(9 / 7, 7), 1: TaskLoss(3.0, 1)}


@pytest.mark.parametrize(
    ("weighting", "expected"),
    [("token", 12 / 8), ("sample", (2 + 3 + 1) / 3), ("task", (9 / 7 + 3) / 2)],
)
def test_the_loss_weighs_what_training_weighs(weighting: LossWeighting, expected: float) -> None:
    tasks = task_losses(SAMPLES, SUMS, COUNTS).values()
    assert mean_loss(SUMS, COUNTS, tasks, weighting) == pytest.approx(expected)
