"""Global batches: as many samples as fit in a token budget."""

import threading
from bisect import bisect_right
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from dynapipe_hpc.data.config import DataConfig
from dynapipe_hpc.data.dataset.long_samples import used_tokens
from dynapipe_hpc.data.sample import Sample

Integers = npt.NDArray[np.integer]
Tokens = npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class _Epoch:
    """One pass over the dataset: batch i is `order[starts[i]:starts[i + 1]]`."""

    order: Tokens
    starts: list[int]

    @property
    def n_batches(self) -> int:
        return len(self.starts) - 1


class TokenBudgetSampler:
    """A sampler that fills every global batch until the next sample would exceed a token budget.

    An epoch visits all samples that are not left out as too long, in an order drawn from
    (seed, epoch). A batch never spans two epochs, so it holds no sample twice. If the last batch
    of an epoch has room left, it is dropped (each epoch drops other samples), unless it is the
    only one. Iterations are numbered through all epochs, without end.

    Everything follows from lengths and configuration, so all ranks compute the same batches
    without communication. Any thread may ask for any iteration: the latest epochs are kept, and
    an earlier one is recomputed when it is asked for.

    Source:
        Jiang et al., "DynaPipe", EuroSys 2024 (Evaluation), whose global batches hold a
        fixed number of tokens rather than of samples.
    """

    def __init__(
        self,
        input_lengths: Integers,
        target_lengths: Integers,
        task_ids: Integers,
        config: DataConfig,
    ) -> None:
        """Takes the dataset's lengths.

        Args:
            input_lengths: Number of input tokens of every sample, shape (n_samples,).
            target_lengths: Number of target tokens of every sample, >= 1, shape (n_samples,).
            task_ids: Task id of every sample, shape (n_samples,).
            config: Treatment of long samples, token budget and seed.

        Raises:
            InputError: There are no samples, or none can be used.
        """
        used = used_tokens(input_lengths, target_lengths, config)
        self._kept, self._inputs, self._targets = used
        self._task_ids = task_ids
        self._config = config
        self._first_iterations = [0]  # of every epoch whose number of batches is known
        self._recent: dict[int, _Epoch] = {}
        self._lock = threading.Lock()

    def iteration(self, k: int) -> list[Sample]:
        """The samples of global batch k >= 0, in the order in which they were drawn."""
        if k < 0:
            raise ValueError(f"iterations count from 0, got {k}")
        with self._lock:
            number = self._epoch_of(k)
            epoch = self._epoch(number)
            batch = k - self._first_iterations[number]
        return [self._sample(i) for i in epoch.order[epoch.starts[batch] : epoch.starts[batch + 1]]]

    def first_below(self, n_samples: int, n_iterations: int) -> int | None:
        """The first of `n_iterations` iterations with fewer than `n_samples` samples, or None.

        Goes through the epochs, unless the budget holds `n_samples` of the longest samples.
        """
        longest = int((self._inputs + self._targets)[self._kept].max())
        if n_samples * longest <= self._config.tokens_per_batch and n_samples <= len(self._kept):
            return None
        first, number = 0, 0
        while first < n_iterations:
            with self._lock:
                counts = np.diff(self._epoch(number).starts)
            few = np.flatnonzero(counts < n_samples)
            if few.size and first + few[0] < n_iterations:
                return int(first + few[0])
            first, number = first + len(counts), number + 1
        return None

    def _epoch_of(self, k: int) -> int:
        while k >= self._first_iterations[-1]:
            newest = len(self._first_iterations) - 1
            n_batches = self._epoch(newest).n_batches
            self._first_iterations.append(self._first_iterations[-1] + n_batches)
        return bisect_right(self._first_iterations, k) - 1

    def _epoch(self, number: int) -> _Epoch:
        if number not in self._recent:
            # Two epochs: planners may be a few iterations ahead of the executor, in the next one.
            while len(self._recent) >= 2:
                del self._recent[next(iter(self._recent))]
            order = self._kept[_order(len(self._kept), self._config.seed, number)]
            lengths = (self._inputs + self._targets)[order]
            self._recent[number] = _Epoch(order, _starts(lengths, self._config.tokens_per_batch))
        return self._recent[number]

    def _sample(self, sample_id: int) -> Sample:
        return Sample(
            int(sample_id),
            int(self._inputs[sample_id]),
            int(self._targets[sample_id]),
            int(self._task_ids[sample_id]),
        )


def _order(n_samples: int, seed: int, epoch: int) -> Tokens:
    """A random permutation that depends on nothing but its arguments.

    A `SeedSequence` joins the 32-bit words of its numbers without marking where one ends. The
    seed's upper word goes last, so that no two pairs of seed and epoch have the same words.

    It sorts raw random words, because NumPy keeps bit streams the same between versions but not
    the result of `Generator.permutation`.
    """
    entropy = np.random.SeedSequence([seed % 2**32, epoch, seed // 2**32])
    words = np.random.Philox(entropy).random_raw(n_samples)
    order: Tokens = np.argsort(words, kind="stable").astype(np.int64)
    return order


def _starts(lengths: Tokens, budget: int) -> list[int]:
    """Index in `lengths` where each batch starts, and where the last batch that counts ends."""
    ends = np.concatenate(([0], np.cumsum(lengths)))
    starts = [0]
    while starts[-1] < len(lengths):
        limit = ends[starts[-1]] + budget
        starts.append(int(np.searchsorted(ends, limit, side="right")) - 1)
    last_is_full = ends[-1] - ends[starts[-2]] == budget
    return starts if last_is_full or len(starts) == 2 else starts[:-1]
