"""Metrics of an iteration: numbers for trackers, and one line of the log."""

import math
from collections.abc import Mapping

from dynapipe_hpc.report.records import IterationRecord, PreferenceMeans

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
    """A line of at most 100 columns as a rule, and one for each thing to note."""
    line = (
        f"iteration {record.iteration}: of {record.n_iterations}, "
        f"{duration(record.seconds_left)} left, loss {record.loss:.4f}, "
        f"lr {_exponent(record.learning_rate)}, norm {record.gradient_norm:.2g}, "
        f"bubble {percent(record.bubble_share)}, trip {percent(record.longest_trip_share)}, "
        f"{short(record.tokens)} tok, "
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
