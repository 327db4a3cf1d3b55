"""Global batches of a mixture of datasets."""

from collections.abc import Sequence

import numpy as np

from dynapipe_hpc.data.config import DataConfig
from dynapipe_hpc.data.dataset.batches import Block, Tokens, batch_starts
from dynapipe_hpc.data.dataset.long_samples import UsedTokens
from dynapipe_hpc.data.dataset.mixture import Mixture
from dynapipe_hpc.data.dataset.visits import Visits

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

    def block(self, number: int) -> Block:
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

    def _block(self, counts: Sequence[int], n_draws: int) -> Block | None:
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
        return Block(samples, starts) if is_end or len(starts) > 1 else None


def _drawn_before(samples: Tokens) -> Tokens:
    """Largest index at which one of the samples so far was drawn before, as in `batch_starts`."""
    order = np.argsort(samples, kind="stable")
    again = np.flatnonzero(samples[order[1:]] == samples[order[:-1]])
    before = np.full(len(samples), -1, np.int64)
    before[order[again + 1]] = order[again]
    return np.maximum.accumulate(before)
