"""The loss of an evaluation from the losses of its samples."""

import numpy as np
import pytest

from dynapipe_hpc.data.sample import Sample
from dynapipe_hpc.experiment.run.evaluator import mean_loss, task_losses
from dynapipe_hpc.report.evaluation_record import TaskLoss
from dynapipe_hpc.training.config import LossWeighting

SAMPLES = [Sample(7, 3, 2, task_id=4), Sample(3, 1, 1, task_id=1), Sample(9, 0, 5, task_id=4)]
SUMS, COUNTS = np.array([4.0, 3.0, 5.0]), np.array([2.0, 1.0, 5.0])


def test_the_loss_of_a_task_is_that_of_its_tokens() -> None:
    assert task_losses(SAMPLES, SUMS, COUNTS) == {4: TaskLoss(9 / 7, 7), 1: TaskLoss(3.0, 1)}


@pytest.mark.parametrize(
    ("weighting", "expected"),
    [("token", 12 / 8), ("sample", (2 + 3 + 1) / 3), ("task", (9 / 7 + 3) / 2)],
)
def test_the_loss_weighs_what_training_weighs(weighting: LossWeighting, expected: float) -> None:
    tasks = task_losses(SAMPLES, SUMS, COUNTS).values()
    assert mean_loss(SUMS, COUNTS, tasks, weighting) == pytest.approx(expected)
