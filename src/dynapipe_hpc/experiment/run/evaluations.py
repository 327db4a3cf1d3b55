"""The evaluations of a run: when they are due, and what follows from them."""

from dynapipe_hpc.experiment.evaluation_config import EvaluationConfig
from dynapipe_hpc.experiment.run.evaluator import Evaluator
from dynapipe_hpc.experiment.run.loss_history import LossHistory
from dynapipe_hpc.experiment.run.run_log import RunLog


class Evaluations:
    """Evaluations of a run. All ranks call every method alike.

    Attributes:
        history: Losses so far.
        interrupted_by: Signal that asked the run to stop while it evaluated; 0 if none did.
    """

    def __init__(
        self,
        evaluator: Evaluator,
        config: EvaluationConfig,
        n_iterations: int,
        history: LossHistory,
        log: RunLog | None,
    ) -> None:
        """Evaluates with `evaluator`.

        Args:
            evaluator: Evaluator of the model.
            config: The [evaluation] table.
            n_iterations: Number of iterations of the run.
            history: Losses of earlier evaluations of the run.
            log: Log of the run on the first rank, None elsewhere.
        """
        self._evaluator, self._config, self._log = evaluator, config, log
        self._n_iterations = n_iterations
        self.history = history
        self.interrupted_by = 0

    def after_iteration(self, n_done: int) -> bool:
        """Evaluates if that is due; returns whether the loss is the lowest so far.

        An evaluation in which the run is asked to stop has no result. It is made up for when the
        run continues.
        """
        is_due = self._config.is_due(n_done, self._n_iterations)
        if not is_due or n_done in self.history:
            return False
        record = self._evaluator.evaluate(n_done)
        if isinstance(record, int):
            self.interrupted_by = record
            return False
        is_best = self.history.add(n_done, record.loss)
        if self._log is not None:
            self._log.add_evaluation(record, is_best=is_best)
            if self.history.is_over:
                print(f"training ends early: {self.history.describe()}", flush=True)
        return is_best
