"""Means over preference pairs: what training on them is watched by."""

from collections.abc import Sequence
from typing import Self

from pydantic.dataclasses import dataclass as validated

from dynapipe_hpc.report.lines_file import Number


@validated(frozen=True, slots=True)
class PreferenceMeans:
    """Means over preference pairs; docs/preferences.md says what each is."""

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
        """Reward of chosen answers less that of rejected ones."""
        return self.chosen_reward - self.rejected_reward

    @property
    def metrics(self) -> dict[str, float]:
        """The means by name, the margin included."""
        names = ("chosen_reward", "rejected_reward", "margin", "accuracy")
        others = ("chosen_log_prob", "rejected_log_prob", "kl")
        return {name: getattr(self, name) for name in (*names, *others)}
