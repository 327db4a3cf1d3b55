"""Mixtures: the dataset from which each training sample is drawn."""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Self

import numpy as np
import numpy.typing as npt

from dynapipe_hpc.data.config import DataConfig

Integers = npt.NDArray[np.int64]
Floats = npt.NDArray[np.floating]
RATE_STEPS = 2**32
"""Rates are multiples of 1 / RATE_STEPS: powers may differ in their last bits between machines."""


@dataclass(frozen=True, slots=True)
class Mixture:
    """Datasets, and the rates at which samples are drawn from them.

    Draw i from a dataset of rate r is due at (i + 1/2) / r. Draws follow each other in the order in
    which they are due, those due at the same time in the order of their datasets. So every dataset
    has its share of any stretch of draws, to within a few samples, and exactly in the long run. A
    dataset with a limit of epochs is no longer drawn from once it has reached it; the others take
    its place in proportion to their rates.

    Attributes:
        names: Names of the datasets.
        n_samples: Number of samples of every dataset that training uses.
        n_tokens: Number of tokens of these samples, as they are used.
        rates: Share of the draws that each dataset has, > 0, together 1.
        epochs: Most epochs of each dataset; None for no limit.

    Source:
        Webster's method of apportionment, seat by seat; in scheduling: Waldspurger and Weihl,
        "Stride Scheduling: Deterministic Proportional-Share Resource Management", MIT, 1995.
    """

    names: tuple[str, ...]
    n_samples: tuple[int, ...]
    n_tokens: tuple[int, ...]
    rates: tuple[float, ...]
    epochs: tuple[int | None, ...]

    @classmethod
    def from_config(
        cls, config: DataConfig, n_samples: Sequence[int], n_tokens: Sequence[int]
    ) -> Self:
        """The mixture of a configuration, whose datasets have these usable samples and tokens.

        Source:
            Raffel et al., "Exploring the Limits of Transfer Learning" (T5), JMLR 2020, section
            3.5.2: examples-proportional mixing with a limit, and a temperature after it.
        """
        mixed = config.mixture or ()
        sizes = zip(mixed, n_samples, strict=True)
        shares = [entry.weight or _share_of_size(n, config) for entry, n in sizes]
        total = math.fsum(shares)
        return cls(
            names=tuple(entry.name for entry in mixed),
            n_samples=tuple(n_samples),
            n_tokens=tuple(n_tokens),
            rates=tuple(max(1, round(s / total * RATE_STEPS)) / RATE_STEPS for s in shares),
            epochs=tuple(entry.epochs for entry in mixed),
        )

    @property
    def ends(self) -> list[float]:
        """Most draws from each dataset, infinite without a limit of epochs."""
        limits = zip(self.n_samples, self.epochs, strict=True)
        return [math.inf if epochs is None else n * epochs for n, epochs in limits]

    @property
    def is_sound(self) -> bool:
        """Whether every dataset has a size and a rate that there can be."""
        columns = (self.n_samples, self.n_tokens, self.rates, self.epochs)
        numbers = (*self.n_samples, *self.n_tokens, *self.rates, *filter(None, self.epochs))
        return (
            {len(column) for column in columns} == {len(self.names)}
            and all(0 < number <= 2**62 for number in numbers)
            and min(self.rates) >= 1 / RATE_STEPS
        )

    @property
    def is_limited(self) -> bool:
        """Whether every dataset has a limit of epochs, so that draws end."""
        return None not in self.epochs

    @property
    def token_rates(self) -> list[float]:
        """Share of the tokens that each dataset has in the long run, while none has ended."""
        sizes = zip(self.rates, self.n_tokens, self.n_samples, strict=True)
        tokens = [rate * n_tokens / n_samples for rate, n_tokens, n_samples in sizes]
        return [each / sum(tokens) for each in tokens]

    def describe(self, n_draws: int) -> Iterator[str]:
        """Yields a line per dataset: its rates, and its epochs in the first `n_draws` draws."""
        counts, token_rates = self.counts_after(n_draws), self.token_rates
        for d, name in enumerate(self.names):
            limit = f" of at most {most:,}" if (most := self.epochs[d]) else ""
            yield (
                f"{name}: {100 * self.rates[d]:.1f} % of samples, {100 * token_rates[d]:.1f} % of "
                f"tokens; {counts[d] / self.n_samples[d]:.2f}{limit} epochs of "
                f"{self.n_samples[d]:,} samples"
            )

    def counts_after(self, n_draws: int) -> list[int]:
        """Number of draws from each dataset among the first `n_draws`; all there are, if fewer."""
        n_draws = int(min(n_draws, sum(self.ends)))
        before, until = 0.0, 1.0
        while sum(self._counts_before(until)) < n_draws:
            until *= 2
        while before < (between := (before + until) / 2) < until:
            if sum(self._counts_before(between)) <= n_draws:
                before = between
            else:
                until = between
        counts, later = self._counts_before(before), self._counts_before(until)
        for dataset, n_later in enumerate(later):  # these are due at the same time
            counts[dataset] += min(n_later - counts[dataset], n_draws - sum(counts))
        return counts

    def draws_after(self, counts: Sequence[int], n_draws: int) -> Integers:
        """The dataset of each of the next draws; about `n_draws`, at least one if there is one.

        Args:
            counts: Number of draws from each dataset before them.
            n_draws: Number of draws, > 0, that the rates would give.
        """
        active = [d for d, count in enumerate(counts) if count < self.ends[d]]
        if not active:
            return np.empty(0, np.int64)
        first_due = min((counts[d] + 0.5) / self.rates[d] for d in active)
        until = first_due + n_draws / sum(self.rates[d] for d in active)
        due = [self._due_before(until, d, counts[d]) for d in active]
        datasets = np.repeat(np.array(active, np.int64), [len(each) for each in due])
        return datasets[np.argsort(np.concatenate(due), kind="stable")]

    def _due_before(self, time: float, dataset: int, count: int) -> Floats:
        """Due times of draws from a dataset: those before a time, from number `count` on."""
        rate = self.rates[dataset]
        end = int(min(self.ends[dataset], time * rate + 1))
        due = (np.arange(count, max(end, count)) + 0.5) / rate
        return due[: np.searchsorted(due, time)]

    def _counts_before(self, time: float) -> list[int]:
        """Number of draws from each dataset that are due before a time."""
        counts = []
        for dataset, (rate, end) in enumerate(zip(self.rates, self.ends, strict=True)):
            # All draws before this one are due, and a few may be from it on.
            certain = int(min(end, max(0, int(time * rate) - 1)))
            counts.append(certain + len(self._due_before(time, dataset, certain)))
        return counts


def _share_of_size(n_samples: int, config: DataConfig) -> float:
    capped = min(n_samples, config.mixture_cap or n_samples)
    return float(capped ** (1 / (config.mixture_temperature or 1)))
