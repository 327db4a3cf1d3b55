"""Records of a run: numbers of its iterations and evaluations, as JSON, metrics and lines."""

import dataclasses
import math
from collections.abc import Mapping, Sequence
from enum import Enum, auto
from typing import Annotated, Self

from pydantic import Field
from pydantic.dataclasses import dataclass as validated

from dynapipe_hpc.report.lines_file import Number


@validated(frozen=True, slots=True)
class PreferenceMeans:
    """Means over preference pairs; docs/preferences.md describes each."""

    chosen_reward: Number
    rejected_reward: Number
    accuracy: Number
    chosen_log_prob: Number
    rejected_log_prob: Number
    kl: Number

    @classmethod
    def from_sums(cls, sums: Sequence[float], n_pairs: int) -> Self | None:
        """Means from sums over pairs, in the order of the attributes; None if there are none."""
        return cls(*(each / n_pairs for each in sums)) if sums else None

    @property
    def margin(self) -> float:
        return self.chosen_reward - self.rejected_reward

    @property
    def metrics(self) -> dict[str, float]:
        names = ("chosen_reward", "rejected_reward", "margin", "accuracy")
        others = ("chosen_log_prob", "rejected_log_prob", "kl")
        return {name: getattr(self, name) for name in (*names, *others)}


MAX_VALUE = 1e18


class Over(Enum):
    """Combination of a number over ranks, as in `Annotated[int, Over.SUM]`."""

    SAME = auto()
    SUM = auto()
    MAX = auto()
    MIN = auto()


_POSITIVE = Field(gt=0, le=MAX_VALUE)
_COUNT = Field(ge=0, le=int(MAX_VALUE))


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class IterationNumbers:
    """Numbers of an iteration, of one rank or, once they are combined, of all ranks.

    docs/formats.md describes each. The shards of a stage execute the same plan in step, so only the
    first shard counts where numbers are added up. On a rank the loss is the part of its stage, and
    micro-batches and computed tokens count in the first stage only. At most one rank has planned
    the iteration: on other ranks, numbers that only planning knows have their defaults.
    """

    iteration: Annotated[int, _COUNT, Over.SAME]
    loss: Annotated[Number, Over.SUM]
    gradient_norm: Annotated[Number, Over.SAME]
    learning_rate: Annotated[Number, Over.SAME]
    n_samples: Annotated[int, Over.SAME]
    real_tokens: Annotated[int, _POSITIVE, Over.SAME]
    n_microbatches: Annotated[int, Over.SUM]
    padded_tokens: Annotated[int, _POSITIVE, Over.SUM]
    predicted_ms: Annotated[float, _POSITIVE, Over.SAME]
    predicted_peak_bytes: Annotated[int, Over.MAX]
    measured_peak_bytes: Annotated[int, Over.MAX]
    waited_ms: Annotated[float, Over.MAX]
    planning_ms: Annotated[float, Over.SUM] = 0.0
    plans_ahead: Annotated[int, Over.MIN]
    longest_trip_ms: Annotated[float, Over.MAX] = 0.0
    outlier_sample: Annotated[int, Over.MAX] = -1
    outlier_tokens: Annotated[int, Over.MAX] = 0
    outlier_ms: Annotated[float, Over.MAX] = 0.0
    passes_ms: Annotated[float, Over.SUM]
    last_pass_ms: Annotated[float, Over.MAX]
    n_ranks: Annotated[int, Over.SUM] = 1
    preferences: Annotated[tuple[Number, ...], Over.SUM] = ()

    @property
    def has_outlier(self) -> bool:
        return self.outlier_sample >= 0

    @property
    def longest_trip_share(self) -> float:
        """Share of the predicted iteration that the longest sample's own trip takes."""
        return self.longest_trip_ms / self.predicted_ms

    @property
    def preference_means(self) -> PreferenceMeans | None:
        """Means over the preference pairs of the batch; None if no pairs are trained."""
        return PreferenceMeans.from_sums(self.preferences, self.n_samples)

    @property
    def padding_efficiency(self) -> float:
        return self.real_tokens / self.padded_tokens

    @property
    def bubble_share(self) -> float:
        """Share of the time until the last pass in which the average rank executes none."""
        if not self.last_pass_ms:
            return math.nan
        return 1 - self.passes_ms / self.n_ranks / self.last_pass_ms


@validated(frozen=True, slots=True, kw_only=True)
class IterationRecord(IterationNumbers):
    """The numbers of all ranks, and the state of the run after the iteration."""

    measured_ms: Annotated[float, _POSITIVE]
    time: str
    n_iterations: int
    tokens: int
    seconds_left: float

    @property
    def tokens_per_s(self) -> float:
        return 1e3 * self.real_tokens / self.measured_ms


@validated(frozen=True, slots=True)
class TaskLoss:
    """Mean loss of the target tokens of a task, or of its preference pairs, and their number."""

    loss: Number
    tokens: Annotated[int, Field(gt=0, le=2**53)]


@validated(frozen=True, slots=True)
class EvaluationRecord:
    """Result of an evaluation after `n_done` iterations; docs/formats.md describes each number."""

    n_done: Annotated[int, Field(ge=0)]
    loss: Number
    took_ms: float
    tasks: Annotated[Mapping[str, TaskLoss], Field(min_length=1)]
    preferences: PreferenceMeans | None = None

    @property
    def tokens(self) -> int:
        return sum(task.tokens for task in self.tasks.values())

    @property
    def metrics(self) -> dict[str, float]:
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


_SUFFIXES = ("", "k", "M", "B", "T")


def short(amount: float) -> str:
    """An amount, at least 0, with three digits: 0.57, 987, 12.3k, 4.56M, 7.89B, 1.20T."""
    scaled, power = amount, 0
    # 999.5 would be rounded to four digits.
    while scaled >= 999.5 and power < len(_SUFFIXES) - 1:
        scaled, power = scaled / 1e3, power + 1
    if scaled >= 99.95 or (not power and scaled == int(scaled)):
        return f"{scaled:.0f}{_SUFFIXES[power]}"
    return f"{scaled:.{2 if scaled < 9.995 else 1}f}{_SUFFIXES[power]}"


def duration(seconds: float) -> str:
    """A duration, at least 0 s, in its two largest units: 42s, 3m07, 5h09, 12d04."""
    whole = round(seconds)
    if whole < 60:
        return f"{whole}s"
    if whole < 3600:
        return f"{whole // 60}m{whole % 60:02d}"
    hours, minutes = divmod(whole // 60, 60)
    return f"{hours}h{minutes:02d}" if hours < 48 else f"{hours // 24}d{hours % 24:02d}"


def metrics(record: IterationRecord) -> Mapping[str, float]:
    """Numbers that change from iteration to iteration, by the names that trackers show."""
    means = record.preference_means
    preferences = {f"preferences/{k}": v for k, v in means.metrics.items()} if means else {}
    return {
        "tokens": record.tokens,
        "loss": record.loss,
        "learning_rate": record.learning_rate,
        "gradient_norm": record.gradient_norm,
        "seconds": 1e-3 * record.measured_ms,
        "tokens_per_s": record.tokens_per_s,
        "padding_efficiency": record.padding_efficiency,
        "bubble_share": record.bubble_share,
        "longest_trip_share": record.longest_trip_share,
        "predicted_seconds": 1e-3 * record.predicted_ms,
        "plans_ahead": record.plans_ahead,
        "peak_bytes": record.measured_peak_bytes,
        "seconds_left": record.seconds_left,
        **preferences,
    }


def log_line(record: IterationRecord) -> str:
    """A line, usually of at most 100 columns, and a further line for each thing to note."""
    line = (
        f"iteration {record.iteration}: of {record.n_iterations}, "
        f"{duration(record.seconds_left)} left, loss {record.loss:.4f}, "
        f"lr {_exponent(record.learning_rate)}, norm {record.gradient_norm:.2g}, "
        f"bubble {percent(record.bubble_share)}, "
        f"critical path {percent(record.longest_trip_share)}, {short(record.tokens)} tok, "
        f"{short(record.tokens_per_s)}/s"
    )
    if means := record.preference_means:
        line += f"\n  {describe_preferences(means)}"
    if record.has_outlier:
        line += (
            f"\n  sample {record.outlier_sample} ({record.outlier_tokens:,} tokens) adds "
            f"{record.outlier_ms:,.0f} ms"
        )
    if not math.isfinite(record.gradient_norm):
        line += "\n  update skipped: a gradient is not finite"
    return line


def describe_preferences(means: PreferenceMeans) -> str:
    return (
        f"accuracy {percent(means.accuracy)}, margin {means.margin:.4f} (rewards "
        f"{means.chosen_reward:.4f} chosen, {means.rejected_reward:.4f} rejected)"
    )


def percent(share: float) -> str:
    """A share in per cent; a dash for NaN."""
    return "-" if math.isnan(share) else f"{100 * share:.0f}%"


def _exponent(number: float) -> str:
    digits, _, power = f"{number:.1e}".partition("e")
    return f"{digits}e{int(power)}" if power else digits
