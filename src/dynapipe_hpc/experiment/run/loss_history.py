"""Losses of a run's evaluations: which state is the best, and whether training should end."""

import math
from collections.abc import Iterable
from pathlib import Path
from typing import Self

from dynapipe_hpc.experiment.evaluation_config import EvaluationConfig
from dynapipe_hpc.report.run_folder import evaluations_file


class LossHistory:
    """Losses of evaluations by the number of iterations done.

    The evaluation before the first iteration does not count, as training has done nothing yet.
    """

    def __init__(self, patience: int, losses: Iterable[tuple[int, float]] = ()) -> None:
        """Continues earlier evaluations, ascending; no `patience` is no limit."""
        self._patience = patience
        self._losses: dict[int, float] = {}
        self._n_worse = 0
        self.best: int | None = None  # iterations done when the loss was lowest
        for n_done, loss in losses:
            self.add(n_done, loss)

    @classmethod
    def read(cls, output: Path, config: EvaluationConfig, n_done: int) -> Self:
        """The history of a run folder up to `n_done` iterations."""
        records = evaluations_file(output).records() if n_done else ()
        losses = ((record.n_done, record.loss) for record in records if record.n_done <= n_done)
        return cls(config.patience, losses)

    def __contains__(self, n_done: int) -> bool:
        """Whether there was an evaluation after so many iterations."""
        return n_done in self._losses

    def add(self, n_done: int, loss: float) -> bool:
        """Adds an evaluation; returns whether it has the lowest loss of those that count."""
        self._losses[n_done] = loss
        if n_done == 0:
            return False
        lowest = math.inf if self.best is None else self._losses[self.best]
        is_best = loss < lowest
        self.best = n_done if is_best else self.best
        self._n_worse = 0 if is_best else self._n_worse + 1
        return is_best

    @property
    def is_over(self) -> bool:
        """Whether so many evaluations in a row had no lower loss that training should end."""
        return 0 < self._patience <= self._n_worse

    def describe(self) -> str:
        """Message on why training ends early."""
        reason = f"no lower loss in {self._n_worse} evaluations (evaluation.patience)"
        if self.best is None:
            return f"{reason}; none was a finite number"
        return (
            f"{reason}; the lowest, {self._losses[self.best]:.4f}, was after {self.best} iterations"
        )


def is_complete(n_done: int, n_iterations: int, history: LossHistory | None) -> bool:
    """Whether a run has nothing left to do; without a history it does not evaluate.

    A run that was asked to stop in its last evaluation has that left.
    """
    if history is None:
        return n_done >= n_iterations
    lacks_last = n_done == n_iterations and n_done not in history
    return history.is_over or (n_done >= n_iterations and not lacks_last)
