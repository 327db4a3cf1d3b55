"""Record of an evaluation: one line of evaluations.jsonl."""

import math
from collections.abc import Mapping
from typing import Annotated

from pydantic import Field
from pydantic.dataclasses import dataclass

from dynapipe_hpc.report.lines_file import Number
from dynapipe_hpc.report.preference_means import PreferenceMeans


@dataclass(frozen=True, slots=True)
class TaskLoss:
    """Mean loss of the target tokens of a task, or of its preference pairs, and their number."""

    loss: Number
    tokens: Annotated[int, Field(gt=0, le=2**53)]


@dataclass(frozen=True, slots=True)
class EvaluationRecord:
    """Result of an evaluation after `n_done` iterations; docs/formats.md says what each is."""

    n_done: Annotated[int, Field(ge=0)]
    loss: Number
    took_ms: float
    tasks: Annotated[Mapping[str, TaskLoss], Field(min_length=1)]
    preferences: PreferenceMeans | None = None

    @property
    def tokens(self) -> int:
        """Number of target tokens, or of preference pairs, of all tasks."""
        return sum(task.tokens for task in self.tasks.values())

    @property
    def metrics(self) -> dict[str, float]:
        """Numbers by the names that trackers show."""
        numbers = self.preferences.metrics if self.preferences else {"perplexity": self.perplexity}
        return {f"evaluation/{k}": v for k, v in {"loss": self.loss, **numbers}.items()}

    @property
    def perplexity(self) -> float:
        """Perplexity of the target tokens: the exponential of their mean loss."""
        total = sum(task.loss * task.tokens for task in self.tasks.values())
        try:
            return math.exp(total / self.tokens)
        except OverflowError:
            return math.inf
