"""Gain of a run over the best of the others, and its reasons."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from dynapipe_hpc.report.rank_time import Use
from dynapipe_hpc.report.throughput import RunSummary
from dynapipe_hpc.report.time_use import TimeUse

MIN_SHARE = 0.01
"""Smallest difference that is told, as a fraction of the other run's time."""


@dataclass(frozen=True, slots=True)
class Gain:
    """The real tokens per second of a run over those of the best other run.

    Attributes:
        claim: Sentence with the ratio.
        why: Clause on the uses of time that differ in traced iterations after the warm-up; empty
            if none does, or if they are not known.
    """

    claim: str
    why: str

    def __str__(self) -> str:
        """Claim and reason in one sentence."""
        return f"{self.claim}: {self.why}" if self.why else self.claim


def gain(
    summaries: Sequence[RunSummary], times: Sequence[TimeUse | None], subject: int | None
) -> Gain | None:
    """Compares a run with the best of the others.

    Args:
        summaries: Summaries of the runs.
        times: Use of time of each run, where known.
        subject: Index of the run; the fastest if None.

    Returns:
        None if there is one run only.
    """
    if len(summaries) == 1:
        return None
    by_speed = sorted(range(len(summaries)), key=lambda i: -summaries[i].real_tokens_per_s)
    subject = by_speed[0] if subject is None else subject
    best = next(i for i in by_speed if i != subject)
    winner, other = summaries[subject], summaries[best]
    ratio = winner.real_tokens_per_s / other.real_tokens_per_s
    others = "the best of the other runs" if len(summaries) > 2 else "the other run"
    claim = (
        f"{winner.name} processes {ratio:.2f}x the real tokens per second of {other.name}, {others}"
    )
    of_own, of_other = times[subject], times[best]
    if of_own is None or of_other is None or of_own.in_warm_up or of_other.in_warm_up:
        return Gain(claim, "")
    return Gain(claim, _why(of_own, of_other, other.name))


def _why(subject_use: TimeUse, other: TimeUse, other_name: str) -> str:
    """Uses on which a real token takes less or more time than in the other run."""
    scale = other.real_tokens / subject_use.real_tokens / other.iteration_ms
    changes = {use: subject_use.times_ms[use] * scale - other.share(use) for use in Use}
    by_sign = {"less": _large(changes, -1), "more": _large(changes, 1)}
    parts = [f"{word} on {_listed(uses)}" for word, uses in by_sign.items() if uses]
    if not parts:
        return ""
    n = min(subject_use.n_iterations, other.n_iterations)
    traced = f"{n} traced iterations" if n > 1 else "one traced iteration"
    return (
        f"per token of {traced} it spends {' and '.join(parts)}; "
        f"shares are of the time of {other_name}"
    )


def _large(changes: Mapping[Use, float], sign: int) -> list[tuple[Use, float]]:
    """Uses with a change of this sign that is large enough to be told, the largest first."""
    sizes = [(use, sign * change) for use, change in changes.items()]
    large = [(use, size) for use, size in sizes if size >= MIN_SHARE]
    return sorted(large, key=lambda each: -each[1])


def _listed(uses: Sequence[tuple[Use, float]]) -> str:
    return ", ".join(f"{use} ({100 * size:.0f} %)" for use, size in uses)
