"""Mixtures of datasets: from which of them each training sample is drawn, and the batches."""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache, partial
from typing import Self

import numpy as np
import numpy.typing as npt

from dynapipe_hpc.data.config import DataConfig
from dynapipe_hpc.data.dataset.long_samples import Tokens, UsedTokens
from dynapipe_hpc.data.dataset.sampler import BatchBlock, Batches, batch_starts, random_order

Floats = npt.NDArray[np.floating]
RATE_STEPS = 2**32
"""Rates are multiples of 1 / RATE_STEPS: powers may differ in their last bits between machines."""


@dataclass(frozen=True, slots=True)
class Mixture:
    """Datasets, and the rates at which samples are drawn from them.

    Draw i from a dataset of rate r is due at (i + 1/2) / r. Draws come in the order in which they
    are due, and in the order of the datasets if they are due at the same time. So every dataset has
    its share of any stretch of draws, to within a few samples, and exactly in the long run. Once a
    dataset has reached its limit of epochs, it is no longer drawn from; the other datasets take its
    place in proportion to their rates.

    `epochs`: Limit of epochs of each dataset; None for no limit. Source: Webster's method of
    apportionment, seat by seat; in scheduling: Waldspurger and Weihl, "Stride Scheduling:
    Deterministic Proportional-Share Resource Management", MIT, 1995.
    """

    names: tuple[str, ...]
    n_samples: tuple[int, ...]
    n_tokens: tuple[int, ...]
    rates: tuple[float, ...]  # share of the draws that each dataset has, > 0, together 1
    epochs: tuple[int | None, ...]

    @classmethod
    def from_config(
        cls, config: DataConfig, n_samples: Sequence[int], n_tokens: Sequence[int]
    ) -> Self:
        """The mixture of a configuration, given each dataset's number of usable samples and tokens.

        Source: Raffel et al., "Exploring the Limits of Transfer Learning" (T5), JMLR 2020, section
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
        """Limit of draws from each dataset, infinite without a limit of epochs."""
        limits = zip(self.n_samples, self.epochs, strict=True)
        return [math.inf if epochs is None else n * epochs for n, epochs in limits]

    @property
    def is_sound(self) -> bool:
        """Whether the sizes, rates and limits of all datasets are valid."""
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
        """Share of tokens from each dataset in the long run, before any reaches its limit."""
        sizes = zip(self.rates, self.n_tokens, self.n_samples, strict=True)
        tokens = [rate * n_tokens / n_samples for rate, n_tokens, n_samples in sizes]
        return [each / sum(tokens) for each in tokens]

    def describe(self, n_draws: int) -> Iterator[str]:
        """Yields a line per dataset: its rates, and its epochs in the first `n_draws` draws."""
        token_rates, counts = self.token_rates, self._shares_of(n_draws)
        for d, name in enumerate(self.names):
            limit = f" of at most {most:,}" if (most := self.epochs[d]) else ""
            yield (
                f"{name}: {100 * self.rates[d]:.1f} % of samples, {100 * token_rates[d]:.1f} % of "
                f"tokens; {counts[d] / self.n_samples[d]:.2f}{limit} epochs of "
                f"{self.n_samples[d]:,} samples"
            )

    def _shares_of(self, n_draws: int) -> list[float]:
        """Number of draws from each dataset among the first `n_draws`, to within a few."""
        counts, active = [0.0] * len(self.names), set(range(len(self.names)))
        while active and (left := n_draws - sum(counts)) >= 1:
            steps = [(self.ends[d] - counts[d]) / self.rates[d] for d in active]
            step = min(left / sum(self.rates[d] for d in active), *steps)
            for d in active:
                counts[d] += step * self.rates[d]
            active = {d for d in active if self.ends[d] - counts[d] >= 1 / 2}
        return counts

    def draws_after(self, counts: Sequence[int], n_draws: int) -> Tokens:
        """The dataset of each of the next draws: about `n_draws`, at least one if any is left.

        `counts`: Number of earlier draws from each dataset. `n_draws`: Approximate number of draws
        to make, > 0.
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
        """Due times, before `time`, of a dataset's draws from draw number `count` on."""
        rate = self.rates[dataset]
        end = int(min(self.ends[dataset], time * rate + 1))
        due = (np.arange(count, max(end, count)) + 0.5) / rate
        return due[: np.searchsorted(due, time)]


def _share_of_size(n_samples: int, config: DataConfig) -> float:
    capped = min(n_samples, config.mixture_cap or n_samples)
    return float(capped ** (1 / (config.mixture_temperature or 1)))


MIN_DRAWS, MAX_DRAWS = 2**12, 2**20
"""Limits of draws per block: enough for many batches, few enough to make while training waits."""


class MixtureBatches(Batches):
    """Global batches of a mixture: a block is a stretch of draws, up to the end of a batch.

    Every dataset is visited epoch by epoch (`Visits`). No batch holds a sample twice: a batch ends
    before the first sample that it already has. That can only happen to batches that take more
    than a quarter of one of the datasets.

    If all datasets have a limit of epochs, the batches end, too. A last batch with room left is
    dropped, unless it is the only one.
    """

    def __init__(self, mixture: Mixture, used: UsedTokens, config: DataConfig) -> None:
        """Takes the samples."""
        super().__init__(used, config.tokens_per_batch, max(1, min(mixture.n_samples) // 4))
        self.samples_of_epoch, self._mixture = sum(mixture.n_samples), mixture
        kept = np.split(used.kept, np.cumsum(mixture.n_samples)[:-1])
        self._visits = [Visits(ids, config.seed, d) for d, ids in enumerate(kept)]
        self._n_draws = min(max(sum(mixture.n_samples), MIN_DRAWS), MAX_DRAWS)
        self._counts = [[0] * len(kept)]  # draws before each block that can be asked for

    def block(self, number: int) -> BatchBlock:
        """A block of batches, empty after the last; batches are the same wherever blocks end."""
        counts, n_draws = self._counts[number], self._n_draws
        datasets = self._mixture.draws_after(counts, n_draws)
        while (block := self._block(counts, datasets)) is None:  # a batch takes more draws
            n_draws *= 2
            datasets = self._mixture.draws_after(counts, n_draws)
        if number == len(self._counts) - 1:
            drawn = np.bincount(datasets[: block.starts[-1]], minlength=len(counts))
            self._counts.append((counts + drawn).tolist())
        return block

    def _block(self, counts: Sequence[int], datasets: Tokens) -> BatchBlock | None:
        """The batches among the next draws; None if the first does not end among them."""
        samples = np.empty(len(datasets), np.int64)
        for dataset, visits in enumerate(self._visits):
            is_drawn = datasets == dataset
            samples[is_drawn] = visits.samples(counts[dataset], int(np.count_nonzero(is_drawn)))
        starts, last_is_full = batch_starts(
            self._lengths[samples], self._budget, _drawn_before(samples)
        )
        is_end = sum(counts) + len(samples) == sum(self._mixture.ends)
        is_only_one = is_end and len(starts) == 2 and not any(counts)
        if not last_is_full and not is_only_one:
            starts = starts[:-1]
        return BatchBlock(samples, starts) if is_end or len(starts) > 1 else None


def _drawn_before(samples: Tokens) -> Tokens:
    """The argument `earlier` of `batch_starts`, for samples in the order of drawing."""
    order = np.argsort(samples, kind="stable")
    again = np.flatnonzero(samples[order[1:]] == samples[order[:-1]])
    before = np.full(len(samples), -1, np.int64)
    before[order[again + 1]] = order[again]
    return np.maximum.accumulate(before)


class Visits:
    """Visits to the samples of a dataset; every epoch has an order of its own.

    A sample in the last quarter of an epoch is not in the first quarter of the next, so that at
    least about a quarter of the dataset lies between two visits to a sample.
    """

    def __init__(self, kept: Tokens, seed: int, dataset: int) -> None:
        """Takes the ids of the usable samples, at least one, and the index of the dataset."""
        self._kept = kept
        self._random = partial(random_order, len(kept), seed, dataset=dataset)
        self._order = lru_cache(maxsize=2)(self._new_order)

    def samples(self, first: int, n_visits: int) -> Tokens:
        """Ids of the samples of `n_visits` visits, from visit number `first` on."""
        parts = [np.empty(0, np.int64)]
        while n_visits:
            epoch, start = divmod(first, len(self._kept))
            parts.append(self._order(epoch)[start : start + n_visits])
            first, n_visits = first + len(parts[-1]), n_visits - len(parts[-1])
        return self._kept[np.concatenate(parts)]

    def _new_order(self, epoch: int) -> Tokens:
        order = self._random(epoch)
        if epoch:
            _keep_apart(self._random(epoch - 1), order)
        return order


def _keep_apart(previous: Tokens, order: Tokens) -> None:
    """Moves samples in the last quarter of one order out of the first quarter of the next.

    They change places with samples in the middle. So the last quarter stays as it was drawn, and no
    order depends on what was moved in the order before it.
    """
    n_samples, quarter = len(order), len(order) // 4
    is_late = np.zeros(n_samples, np.bool_)
    is_late[previous[n_samples - quarter :]] = True
    early = np.flatnonzero(is_late[order[:quarter]])
    middle = quarter + np.flatnonzero(~is_late[order[quarter : n_samples - quarter]])
    others = middle[: len(early)]
    order[early], order[others] = order[others], order[early]
