"""Global batches of a mixture of datasets."""

from collections.abc import Sequence

import numpy as np

from dynapipe_hpc.data.config import DataConfig
from dynapipe_hpc.data.dataset.batches import BatchBlock, Tokens, batch_starts, random_order
from dynapipe_hpc.data.dataset.long_samples import UsedTokens
from dynapipe_hpc.data.dataset.mixture import Mixture

MIN_DRAWS, MAX_DRAWS = 2**12, 2**20
"""Draws of a block: enough for many batches, few enough to be made while training waits."""


class MixtureBatches:
    """Global batches of a mixture: a block is a stretch of draws, up to the end of a batch.

    Every dataset is visited epoch by epoch (`Visits`). No batch holds a sample twice: a batch ends
    before the first sample that it already has. That can only happen to batches that take more
    than a quarter of one of the datasets.

    If all datasets have a limit of epochs, the batches end, too. If the last one has room left, it
    is dropped, unless it is the only one.
    """

    def __init__(self, mixture: Mixture, used: UsedTokens, config: DataConfig) -> None:
        """Takes the samples.

        Args:
            mixture: Rates and limits of the datasets.
            used: The samples of all datasets, one dataset after the other.
            config: Token budget and seed.
        """
        self.samples_of_epoch = sum(mixture.n_samples)
        self._mixture, self._lengths = mixture, used.lengths
        kept = np.split(used.kept, np.cumsum(mixture.n_samples)[:-1])
        self._visits = [Visits(ids, config.seed, d) for d, ids in enumerate(kept)]
        self._longest = int(self._lengths[used.kept].max())
        self._budget = config.tokens_per_batch
        self._n_draws = min(max(sum(mixture.n_samples), MIN_DRAWS), MAX_DRAWS)
        self._first_draws = [0]  # of every block that can be asked for

    def block(self, number: int) -> BatchBlock:
        """A block of batches, which do not depend on where blocks end; none after the last."""
        counts = self._mixture.counts_after(self._first_draws[number])
        block, n_draws = self._block(counts, self._n_draws), self._n_draws
        while block is None:  # a batch takes more draws
            n_draws *= 2
            block = self._block(counts, n_draws)
        if number == len(self._first_draws) - 1:
            self._first_draws.append(self._first_draws[-1] + block.starts[-1])
        return block

    def has_at_least(self, n_samples: int) -> bool:
        """Whether the budget holds this many of the longest samples, before any is repeated."""
        apart = max(1, min(self._mixture.n_samples) // 4)
        return n_samples * self._longest <= self._budget and n_samples <= apart

    def _block(self, counts: Sequence[int], n_draws: int) -> BatchBlock | None:
        """The batches among the next draws; None if the first does not end among them."""
        datasets = self._mixture.draws_after(counts, n_draws)
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
    """Largest index at which one of the samples so far was drawn before, as in `batch_starts`."""
    order = np.argsort(samples, kind="stable")
    again = np.flatnonzero(samples[order[1:]] == samples[order[:-1]])
    before = np.full(len(samples), -1, np.int64)
    before[order[again + 1]] = order[again]
    return np.maximum.accumulate(before)


class Visits:
    """Visits to the samples of a dataset; every epoch has an order of its own.

    Whatever comes in the last quarter of an epoch does not come in the first quarter of the next,
    so that a quarter of the dataset lies between two visits to a sample.
    """

    def __init__(self, kept: Tokens, seed: int, dataset: int) -> None:
        """Takes the ids of the usable samples, at least one, and the index of the dataset."""
        self._kept, self._seed, self._dataset = kept, seed, dataset
        self._recent: dict[int, Tokens] = {}

    def samples(self, first: int, n_visits: int) -> Tokens:
        """Ids of the samples of `n_visits` visits, from number `first` on."""
        parts = [np.empty(0, np.int64)]
        while n_visits:
            epoch, start = divmod(first, len(self._kept))
            parts.append(self._order(epoch)[start : start + n_visits])
            first, n_visits = first + len(parts[-1]), n_visits - len(parts[-1])
        return self._kept[np.concatenate(parts)]

    def _order(self, epoch: int) -> Tokens:
        if epoch not in self._recent:
            order = self._random(epoch)
            if epoch:
                _keep_apart(self._random(epoch - 1), order)
            while len(self._recent) >= 2:
                del self._recent[next(iter(self._recent))]
            self._recent[epoch] = order
        return self._recent[epoch]

    def _random(self, epoch: int) -> Tokens:
        return random_order(len(self._kept), self._seed, epoch, self._dataset)


def _keep_apart(previous: Tokens, order: Tokens) -> None:
    """Moves what is in the last quarter of one order out of the first quarter of the next.

    It changes places with others of the middle. So the last quarter stays as it was drawn, and no
    order depends on what was moved in the one before.
    """
    n_samples, quarter = len(order), len(order) // 4
    is_late = np.zeros(n_samples, np.bool_)
    is_late[previous[n_samples - quarter :]] = True
    early = np.flatnonzero(is_late[order[:quarter]])
    middle = quarter + np.flatnonzero(~is_late[order[quarter : n_samples - quarter]])
    others = middle[: len(early)]
    order[early], order[others] = order[others], order[early]
