"""The evaluations of a run: when they are due, and what follows from them."""

from dynapipe_hpc.experiment.evaluation_config import EvaluationConfig
from dynapipe_hpc.experiment.experiment import Experiment
from dynapipe_hpc.experiment.run.evaluator import Evaluator
from dynapipe_hpc.experiment.run.forward_passes import FloatArray
from dynapipe_hpc.experiment.run.log import Log
from dynapipe_hpc.experiment.run.loss_history import LossHistory
from dynapipe_hpc.experiment.run.training_rank import TrainingRank


class Evaluations:
    """Evaluations of a run. All ranks call every method alike.

    Attributes:
        were_interrupted: Whether the run was asked to stop while it evaluated.
    """

    def __init__(
        self,
        evaluator: Evaluator,
        config: EvaluationConfig,
        n_iterations: int,
        *,
        history: LossHistory,
        log: Log,
    ) -> None:
        """Evaluates with `evaluator`.

        Args:
            evaluator: Evaluator of the model.
            config: The [evaluation] table.
            n_iterations: Number of iterations of the run.
            history: Losses of earlier evaluations of the run.
            log: Log of the run.
        """
        self._evaluator, self._config, self._log = evaluator, config, log
        self._n_iterations = n_iterations
        self._history = history
        self.were_interrupted = False

    def run_if_due(self, n_done: int) -> int:
        """Evaluates if that is due; returns the signal that asked the run to stop meanwhile, or 0.

        An evaluation in which the run is asked to stop has no result. It is made up for when the
        run continues.
        """
        is_due = self._config.is_due(n_done, self._n_iterations)
        if not is_due or n_done in self._history:
            return 0
        result = self._evaluator.evaluate(n_done)
        if isinstance(result, int):
            self.were_interrupted = True
            return result
        is_best = self._history.add(n_done, result.loss)
        self._log.add_evaluation(result, is_best=is_best)
        if self.have_ended_training:
            self._log.print_line(f"training ends early: {self._history.describe()}")
        return 0

    def is_best(self, n_done: int) -> bool:
        """Whether the loss after `n_done` iterations is the lowest so far."""
        return self._history.best == n_done

    @property
    def have_ended_training(self) -> bool:
        """Whether so many of them had no lower loss that training should end."""
        return self._history.is_over


class NoEvaluations:
    """The evaluations of a run that has none, in place of `Evaluations`."""

    were_interrupted = False
    have_ended_training = False

    def run_if_due(self, _: int) -> int:
        """Nothing is due."""
        return 0

    def is_best(self, _: int) -> bool:
        """No loss is known."""
        return False


def plan_evaluations(
    rank: TrainingRank,
    experiment: Experiment,
    history: LossHistory | None,
    log: Log,
    *,
    reference: FloatArray | None = None,
) -> Evaluations | NoEvaluations:
    """Evaluations of a run, planned by all ranks together.

    Args:
        rank: This rank.
        experiment: The experiment.
        history: Losses of earlier evaluations; None if the run does not evaluate.
        log: Log of the run.
        reference: Log-probabilities by the model before training, see `Evaluator`.
    """
    config, samples = experiment.config, experiment.evaluation
    if config.evaluation is None or samples is None or history is None:
        return NoEvaluations()
    evaluator = Evaluator(rank, experiment, samples, reference)
    return Evaluations(
        evaluator, config.evaluation, config.training.n_iterations, history=history, log=log
    )
