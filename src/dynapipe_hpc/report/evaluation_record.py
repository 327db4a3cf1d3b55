"""Record of an evaluation: one line of evaluations.jsonl."""

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Self

from dynapipe_hpc.data.errors import InputError, quoted


@dataclass(frozen=True, slots=True)
class TaskLoss:
    """Loss of the samples of a task.

    Attributes:
        loss: Mean loss of their target tokens.
        tokens: Number of these tokens.
    """

    loss: float
    tokens: int


@dataclass(frozen=True, slots=True)
class EvaluationRecord:
    """Result of an evaluation.

    Attributes:
        n_done: Number of iterations after which the model was evaluated.
        loss: Loss by the weighting of training: the mean over tokens, samples or tasks.
        took_ms: Time that it took on all ranks.
        tasks: Losses by the name of the task, in the order of the dataset; at least one.
    """

    n_done: int
    loss: float
    took_ms: float
    tasks: Mapping[str, TaskLoss]

    @property
    def tokens(self) -> int:
        """Number of target tokens of all tasks."""
        return sum(task.tokens for task in self.tasks.values())

    @property
    def perplexity(self) -> float:
        """Perplexity of the target tokens: the exponential of their mean loss."""
        total = sum(task.loss * task.tokens for task in self.tasks.values())
        try:
            return math.exp(total / self.tokens)
        except OverflowError:
            return math.inf

    def line(self) -> str:
        """The line of the file."""
        tasks = {name: {"loss": t.loss, "tokens": t.tokens} for name, t in self.tasks.items()}
        known = {"iterations": self.n_done, "loss": self.loss, "perplexity": self.perplexity}
        return json.dumps({**known, "took_ms": self.took_ms, "tasks": tasks}) + "\n"

    @classmethod
    def parse(cls, line: str, where: str) -> Self:
        """Reads a line of the file.

        Raises:
            InputError: The line is damaged; names `where` it is.
        """
        try:
            found = json.loads(line)
            n_done, tasks = found["iterations"], found["tasks"]
            _require(type(n_done) is int and n_done >= 0)
            _require(isinstance(tasks, dict) and bool(tasks))
            return cls(
                n_done,
                _number(found["loss"]),
                _number(found["took_ms"]),
                {name: _task(task) for name, task in tasks.items()},
            )
        except (ValueError, TypeError, KeyError, RecursionError):
            raise InputError(
                f"{where}: {quoted(line)} is not the record of an evaluation; restore the line, "
                "or remove it"
            ) from None


def _task(fields: Any) -> TaskLoss:
    tokens = fields["tokens"]
    _require(type(tokens) is int and 0 < tokens <= 2**53)
    return TaskLoss(_number(fields["loss"]), tokens)


def _number(value: Any) -> float:
    _require(type(value) in (int, float))
    return float(value)


def _require(holds: bool) -> None:
    if not holds:
        raise ValueError
