"""Metrics of an iteration: one line of metrics.jsonl, and one line of the log."""

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass

from dynapipe_hpc.report.amounts import duration, short
from dynapipe_hpc.report.iteration_record import IterationRecord


@dataclass(frozen=True, slots=True)
class Metrics:
    """An iteration's record and the state of the run after it.

    Attributes:
        record: Record of the iteration.
        time: Time at which the iteration ended, as ISO 8601 with its zone.
        n_iterations: Number of iterations of the whole run.
        tokens: Real tokens of all iterations so far, those of earlier starts included.
        bubble_share: Share of the time until the last pass in which the average rank executes no
            pass; NaN if there was no pass.
        seconds_left: Estimate of the time until the last iteration ends.
    """

    record: IterationRecord
    time: str
    n_iterations: int
    tokens: int
    bubble_share: float
    seconds_left: float

    @property
    def tokens_per_s(self) -> float:
        """Real tokens per second of this iteration."""
        return 1e3 * self.record.real_tokens / self.record.measured_ms

    def numbers(self) -> Mapping[str, float]:
        """What changes from iteration to iteration, by its name in metrics.jsonl."""
        record = self.record
        return {
            "tokens": self.tokens,
            "loss": record.loss,
            "learning_rate": record.learning_rate,
            "gradient_norm": record.gradient_norm,
            "seconds": 1e-3 * record.measured_ms,
            "tokens_per_s": self.tokens_per_s,
            "padding_efficiency": record.real_tokens / record.padded_tokens,
            "bubble_share": self.bubble_share,
            "predicted_seconds": 1e-3 * record.predicted_ms,
            "plans_ahead": record.plans_ahead,
            "peak_bytes": record.measured_peak_bytes,
            "seconds_left": self.seconds_left,
        }

    def line(self) -> str:
        """The line of metrics.jsonl; numbers that are not finite are null."""
        known = {"time": self.time, "iteration": self.record.iteration}
        numbers = {name: _or_null(number) for name, number in self.numbers().items()}
        return json.dumps({**known, "iterations": self.n_iterations, **numbers}) + "\n"

    def text(self) -> str:
        """A line for people, at most 100 columns as a rule, and one per thing to note."""
        record = self.record
        bubble = "-" if math.isnan(self.bubble_share) else f"{100 * self.bubble_share:.0f}%"
        told = (
            f"iteration {record.iteration}: of {self.n_iterations}, "
            f"{duration(self.seconds_left)} left, loss {record.loss:.4f}, "
            f"lr {_exponent(record.learning_rate)}, norm {record.gradient_norm:.2g}, "
            f"bubble {bubble}, {short(self.tokens)} tok, {short(self.tokens_per_s)}/s"
        )
        if record.has_outlier:
            told += (
                f"\n  sample {record.outlier_sample} ({record.outlier_tokens:,} tokens) adds "
                f"{record.outlier_ms:,.0f} ms"
            )
        if not math.isfinite(record.gradient_norm):
            told += "\n  update skipped: a gradient is not finite"
        return told


def _exponent(number: float) -> str:
    """A number as in 3.0e-4, without the zero that Python puts before the 4."""
    digits, _, power = f"{number:.1e}".partition("e")
    return f"{digits}e{int(power)}" if power else digits


def _or_null(number: float) -> float | None:
    return number if math.isfinite(number) else None
