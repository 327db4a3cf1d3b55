"""Mixtures of datasets: from which of them each training sample is drawn, and the batches."""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache, partial
from typing import Annotated, Self

import numpy as np
import numpy.typing as npt
from pydantic import Field

from dynapipe_hpc.data.config import DataConfig
from dynapipe_hpc.data.dataset.long_samples import Tokens, UsedTokens
from dynapipe_hpc.data.dataset.sampler import BatchBlock, Batches, batch_starts, random_order

Floats = npt.NDArray[np.floating]
RATE_STEPS = 2**32
"""Rates are multiples of 1 / RATE_STEPS: powers may differ in their last bits between machines."""


Size = Annotated[int, Field(gt=0, le=2**62)]


@dataclass(frozen=True, slots=True)
class MixturePart:
    """One of the datasets of a mixture: its usable samples and their tokens."""

    name: str
    n_samples: Size
    n_tokens: Size
    rate: Annotated[float, Field(ge=1 / RATE_STEPS, le=1)]  # share of the draws, together 1
    epochs: Size | None  # after which it is no longer drawn from; None for no limit

    @property
    def end(self) -> float:
        """Limit of draws, infinite without a limit of epochs."""
        return math.inf if self.epochs is None else self.n_samples * self.epochs


@dataclass(frozen=True, slots=True)
class Mixture:
    """Datasets, and the rates at which samples are drawn from them.

    Draw i from a dataset of rate r is due at (i + 1/2) / r. Draws come in the order in which they
    are due, and in the order of the datasets if they are due at the same time. So every dataset has
    its share of any stretch of draws, to within a few samples, and exactly in the long run. Once a
    dataset has reached its limit of epochs, the other datasets take its place in proportion to
    their rates.

    Source: Webster's method of apportionment, seat by seat; in scheduling: Waldspurger and Weihl,
    "Stride Scheduling: Deterministic Proportional-Share Resource Management", MIT, 1995.
    """

    parts: Annotated[tuple[MixturePart, ...], Field(min_length=1)]

    @classmethod
    def from_config(
        cls, config: DataConfig, n_samples: Sequence[int], n_tokens: Sequence[int]
    ) -> Self:
        """The mixture of a configuration, given each dataset's number of usable samples and tokens.

        Source: Raffel et al., "Exploring the Limits of Transfer Learning" (T5), JMLR 2020, section
        3.5.2: examples-proportional mixing with a limit, to which a temperature is then applied.
        """
        mixed = config.mixture or ()
        power = 1 / (config.mixture_temperature or 1)
        sizes = [min(n, config.mixture_cap or n) ** power for n in n_samples]
        shares = [entry.weight or size for entry, size in zip(mixed, sizes, strict=True)]
        total = math.fsum(shares)
        rates = [max(1, round(share / total * RATE_STEPS)) / RATE_STEPS for share in shares]
        names, epochs = [entry.name for entry in mixed], [entry.epochs for entry in mixed]
        return cls(tuple(map(MixturePart, names, n_samples, n_tokens, rates, epochs)))

    @property
    def is_limited(self) -> bool:
        """Whether every dataset has a limit of epochs, so that the number of draws is finite."""
        return all(part.epochs for part in self.parts)

    def describe(self, n_draws: int) -> Iterator[str]:
        """Yields a line per dataset: its rates, and its epochs in the first `n_draws` draws."""
        tokens = [part.rate * part.n_tokens / part.n_samples for part in self.parts]
        for part, n_tokens, count in zip(self.parts, tokens, self._shares_of(n_draws), strict=True):
            limit = f" of at most {part.epochs:,}" if part.epochs else ""
            yield (
                f"{part.name}: {100 * part.rate:.1f} % of samples, "
                f"{100 * n_tokens / sum(tokens):.1f} % of tokens; "
                f"{count / part.n_samples:.2f}{limit} epochs of {part.n_samples:,} samples"
            )

    def _shares_of(self, n_draws: int) -> list[float]:
        """Number of draws from each dataset among the first `n_draws`, to within a few."""
        counts, active = [0.0] * len(self.parts), dict(enumerate(self.parts))
        while active and (left := n_draws - sum(counts)) >= 1:
            steps = [(part.end - counts[d]) / part.rate for d, part in active.items()]
            step = min(left / sum(part.rate for part in active.values()), *steps)
            for d, part in active.items():
                counts[d] += step * part.rate
            active = {d: part for d, part in active.items() if part.end - counts[d] >= 1 / 2}
        return counts

    def draws_after(self, counts: Sequence[int], n_draws: int) -> Tokens:
        """The dataset of each of the next draws: about `n_draws`, at least one if any is left.

        `counts`: Number of earlier draws from each dataset. `n_draws`: Approximate number of draws
        to make, > 0.
        """
        active = [d for d, part in enumerate(self.parts) if counts[d] < part.end]
        if not active:
            return np.empty(0, np.int64)
        first_due = min((counts[d] + 0.5) / self.parts[d].rate for d in active)
        until = first_due + n_draws / sum(self.parts[d].rate for d in active)
        due = []
        for part, count in ((self.parts[d], counts[d]) for d in active):
            end = int(min(part.end, until * part.rate + 1))
            times = (np.arange(count, max(end, count)) + 0.5) / part.rate
            due.append(times[: np.searchsorted(times, until)])
        datasets = np.repeat(np.array(active, np.int64), [len(each) for each in due])
        return datasets[np.argsort(np.concatenate(due), kind="stable")]


MIN_DRAWS, MAX_DRAWS = 2**12, 2**20
"""Limits of draws per block: enough for many batches, few enough to make while training waits."""


class MixtureBatches(Batches):
    """Global batches of a mixture: a block is a stretch of draws, up to the end of a batch.

    Every dataset is visited epoch by epoch (`Visits`). No batch holds a sample twice: a batch ends
    before the first sample that it already has. Only batches that take more than a quarter of a
    dataset can meet one.

    If all datasets have a limit of epochs, the batches end, too. A last batch with room left is
    dropped, unless it is the only one.
    """

    def __init__(self, mixture: Mixture, used: UsedTokens, config: DataConfig) -> None:
        """Takes the samples."""
        n_samples = [part.n_samples for part in mixture.parts]
        super().__init__(used, config.tokens_per_batch, max(1, min(n_samples) // 4))
        self.samples_of_epoch, self._mixture = sum(n_samples), mixture
        kept = np.split(used.kept, np.cumsum(n_samples)[:-1])
        self._visits = [Visits(ids, config.seed, d) for d, ids in enumerate(kept)]
        self._n_draws = min(max(sum(n_samples), MIN_DRAWS), MAX_DRAWS)
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
        is_end = sum(counts) + len(samples) == sum(part.end for part in self._mixture.parts)
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
