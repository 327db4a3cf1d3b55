"""Training at its beginning and end: evaluations that an earlier run owes, requests to stop."""

import math
from collections.abc import Mapping
from signal import SIGTERM
from types import SimpleNamespace
from typing import Any, cast

import pytest
from tests.jobs.tiny_experiment import tiny_experiment

from dynapipe_hpc.experiment.config import EvaluationConfig
from dynapipe_hpc.experiment.run.evaluations import Evaluations
from dynapipe_hpc.experiment.run.open_run import LossHistory, is_complete
from dynapipe_hpc.experiment.run.run import train
from dynapipe_hpc.report.records import EvaluationRecord, TaskLoss

TABLE = EvaluationConfig(held_out=0.1, every=2, patience=1)


class Rank:
    """A rank that trains by failing: no test here wants an iteration."""

    job = None

    def execute(self, iteration: int, _: object) -> None:
        pytest.fail(f"iteration {iteration} is executed")


class Written:
    """Checkpoints, of which it is noted what happens."""

    def __init__(self) -> None:
        self.calls: list[tuple[Any, ...]] = []

    def __getattr__(self, name: str) -> Any:
        return lambda *values, **named: self.calls.append((name, *values, *named.values()))


class Losses(Evaluations):
    """Evaluations whose results are known: losses, or the signal that interrupts."""

    def __init__(self, history: LossHistory, results: Mapping[int, float | int]) -> None:
        training = tiny_experiment().training.model_copy(update={"iterations": 6})
        changes = {"evaluation": TABLE, "training": training}
        config = tiny_experiment().model_copy(update=changes)
        experiment = cast(Any, SimpleNamespace(config=config, evaluation=None))
        super().__init__(cast(Any, None), experiment, history=history, log=None)
        self.results = results

    def evaluate(self, n_done: int) -> EvaluationRecord | int:
        found = self.results[n_done]
        if isinstance(found, int):
            return found
        return EvaluationRecord(n_done, found, 1.0, {"x": TaskLoss(found, 1)})


def end_of(
    n_done: int, history: LossHistory, results: Mapping[int, float | int]
) -> tuple[int, list[tuple[Any, ...]]]:
    """The signal that `train` returns, and what it asks of checkpoints, of 6 iterations."""
    written: Any = Written()
    evaluations = Losses(history, results)
    plans = cast(Any, SimpleNamespace(iterations=range(n_done, 6), costs=None))
    rank = cast(Any, Rank())
    signal = train(rank, plans, None, evaluations, checkpoints=written, n_traced=0)
    return signal, written.calls


def end(n_done: int, *, stopped: bool) -> tuple[object, ...]:
    """The end of a run that has executed nothing."""
    return ("end", n_done, stopped, False)


def test_a_last_evaluation_that_was_interrupted_is_made_up_for() -> None:
    history = LossHistory(1, [(0, 9.0), (2, 3.0), (4, 2.0)])
    assert not is_complete(range(6, 6), history)
    assert end_of(6, history, {6: SIGTERM}) == (SIGTERM, [end(6, stopped=True)])
    assert not is_complete(range(6, 6), history)
    assert end_of(6, history, {6: 1.0}) == (0, [end(6, stopped=False)])
    assert is_complete(range(6, 6), history)


def test_an_evaluation_that_is_made_up_for_may_end_training() -> None:
    """As it would have, had nothing interrupted it: without one more iteration."""
    history = LossHistory(1, [(0, 9.0), (2, 3.0)])
    assert end_of(4, history, {4: 3.5}) == (0, [end(4, stopped=False)])
    assert is_complete(range(4, 6), history)


def test_the_best_has_the_lowest_loss_since_training_began() -> None:
    history = LossHistory(patience=0)
    losses = {0: 0.5, 10: 3.0, 20: 2.0, 30: 2.0, 40: math.nan, 50: 1.0}
    best = [n_done for n_done, loss in losses.items() if history.add(n_done, loss)]
    assert best == [10, 20, 50]
    assert history.best == 50
    assert not history.is_over
    assert (30 in history, 35 in history) == (True, False)


def test_a_loss_that_is_no_number_is_never_the_best() -> None:
    history = LossHistory(patience=2)
    assert [history.add(n, loss) for n, loss in ((5, math.nan), (10, 4.0), (15, math.inf))] == [
        *(False, True, False)
    ]
    assert history.best == 10
    never = LossHistory(1, [(5, math.nan)])
    assert never.describe() == (
        "no lower loss in 1 evaluations (evaluation.patience); none was a finite number"
    )


def test_a_history_that_is_continued_is_the_same() -> None:
    losses = [(0, 9.0), (5, 3.0), (10, 4.0), (15, 3.5)]
    history = LossHistory(2, losses)
    assert history.is_over
    assert history.best == 5
    told = (
        "no lower loss in 2 evaluations .evaluation.patience.; the lowest, 3.0000, was after 5 it"
    )
    assert history.describe().startswith(
        told.replace(".evaluation.patience.", "(evaluation.patience)")
    )
