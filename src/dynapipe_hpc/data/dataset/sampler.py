"""Global batches of a token budget, epoch by epoch, and samples that are held out of them."""

import math
import threading
from abc import ABC, abstractmethod
from bisect import bisect_right
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
import numpy.typing as npt

from dynapipe_hpc.data.config import DataConfig
from dynapipe_hpc.data.dataset.long_samples import Integers, Tokens, UsedTokens
from dynapipe_hpc.data.errors import InputError
from dynapipe_hpc.data.sample import Sample


@dataclass(frozen=True, slots=True)
class BatchBlock:
    """Consecutive global batches: batch i is `samples[starts[i]:starts[i + 1]]`."""

    samples: Tokens  # ids of the samples, in the order in which they are drawn
    starts: Sequence[int]  # index at which each batch starts, and at which the last one ends

    @property
    def n_batches(self) -> int:
        """Number of batches; 0 in blocks after the very last batch."""
        return len(self.starts) - 1


class Batches(ABC):
    """Global batches, in blocks: without end, or until all datasets reach their limit of epochs.

    `samples_of_epoch`: Number of samples that count as an epoch; None if every block is an epoch.
    """

    samples_of_epoch: int | None = None

    def __init__(self, used: UsedTokens, budget: int, apart: int) -> None:
        """Takes the samples, a token budget, and how many draws in a row never repeat a sample."""
        self._kept, self._lengths = used.kept, used.lengths
        self._budget, self._apart = budget, apart

    @abstractmethod
    def block(self, number: int) -> BatchBlock:
        """Block of batches; callers have asked for every block before it at least once."""

    def has_at_least(self, n_samples: int) -> bool:
        """Whether `n_samples` samples of maximum length fit the budget before any can repeat."""
        longest = int(self._lengths[self._kept].max())
        return n_samples * longest <= self._budget and n_samples <= self._apart


class EpochBatches(Batches):
    """Global batches of one dataset: a block is an epoch.

    An epoch visits all samples that are not left out as too long, in an order drawn from
    (seed, epoch). A batch never spans two epochs, so it holds no sample twice. If the last batch
    of an epoch has room left, it is dropped (each epoch drops other samples), unless it is the
    only one.
    """

    def __init__(self, used: UsedTokens, config: DataConfig) -> None:
        """Takes the samples, and their token budget and seed from the configuration."""
        super().__init__(used, config.tokens_per_batch, len(used.kept))
        self._seed = config.seed

    def block(self, number: int) -> BatchBlock:
        """The batches of an epoch, at least one."""
        samples = self._kept[random_order(len(self._kept), self._seed, number)]
        starts, last_is_full = batch_starts(self._lengths[samples], self._budget)
        return BatchBlock(samples, starts if last_is_full or len(starts) == 2 else starts[:-1])


def random_order(n_samples: int, seed: int, epoch: int, dataset: int = 0) -> Tokens:
    """A random permutation that depends on nothing but its arguments.

    A `SeedSequence` joins the 32-bit words of its numbers without marking where one ends. The
    seed's upper word goes after the epoch, so that no two pairs of seed and epoch have the same
    words; a dataset number of 0 changes nothing.

    The order comes from raw random words, because NumPy keeps bit streams the same between
    versions, but not the result of `Generator.permutation`.
    """
    entropy = np.random.SeedSequence([seed % 2**32, epoch, seed // 2**32, dataset])
    words = np.random.Philox(entropy).random_raw(n_samples)
    order: Tokens = np.argsort(words, kind="stable").astype(np.int64)
    return order


def batch_starts(
    lengths: Tokens, budget: int, earlier: Tokens | None = None
) -> tuple[list[int], bool]:
    """Cuts samples into batches that are as large as the budget allows.

    `lengths`: Number of tokens of every sample, in the order of drawing. `earlier`: For each draw,
    the latest draw whose sample was drawn again by then, or -1; None if no sample repeats. A batch
    ends before a sample that it already has. Returns the index at which each batch starts, then the
    end of all samples, where the last batch ends; and whether the last batch has no room left.
    """
    ends = np.concatenate(([0], np.cumsum(lengths)))
    starts = [0]
    while starts[-1] < len(lengths):
        limit = ends[starts[-1]] + budget
        end = int(np.searchsorted(ends, limit, side="right")) - 1
        if earlier is not None:
            end = min(end, int(np.searchsorted(earlier, starts[-1])))
        starts.append(end)
    return starts, len(starts) == 1 or bool(ends[-1] - ends[starts[-2]] == budget)


MAX_COUNTED_SAMPLES = 1 << 24
"""Maximum number of samples, with repetitions, whose batches are counted one by one. Beyond them,
the number of batches is extrapolated, which takes seconds instead of hours."""


class TokenBudgetSampler:
    """A sampler that fills every global batch until the next sample would exceed a token budget.

    Iterations are numbered through all blocks of batches: epochs of a dataset, or stretches of the
    draws from a mixture.

    Everything follows from lengths and configuration, so all ranks compute the same batches
    without communication. Any thread may ask for any iteration: the latest blocks are kept, and
    earlier ones are recomputed on demand.

    Source: Jiang et al., "DynaPipe", EuroSys 2024 (Evaluation), whose global batches hold a fixed
    number of tokens rather than of samples.
    """

    def __init__(self, used: UsedTokens, task_ids: Integers, batches: Batches) -> None:
        """Takes the samples and their batches."""
        self._used, self._task_ids = used, task_ids
        self._batches = batches
        self._first_iterations = [0]  # of every block whose predecessor is known
        # Two: planners may be a few iterations ahead of the executor, in the next block.
        self._block = lru_cache(maxsize=2)(batches.block)
        self._lock = threading.Lock()

    def iteration(self, k: int) -> list[Sample]:
        """The samples of global batch k >= 0, in the order in which they were drawn."""
        if k < 0:
            raise ValueError(f"iterations count from 0, got {k}")
        with self._lock:
            self._find(k)
            number = bisect_right(self._first_iterations, k) - 1
            block = self._block(number)
            batch = k - self._first_iterations[number]
        start, end = block.starts[batch : batch + 2]
        return self._used.samples(block.samples[start:end], self._task_ids)

    def first_below(self, n_samples: int, n_iterations: int) -> int | None:
        """The first of `n_iterations` iterations with fewer than `n_samples` samples, or None.

        Searches the blocks, unless every batch is sure to have `n_samples`.
        """
        if self._batches.has_at_least(n_samples):
            return None
        first, number = 0, 0
        while first < n_iterations:
            with self._lock:
                counts = np.diff(self._block(number).starts)
            if not counts.size:
                break
            few = np.flatnonzero(counts < n_samples)
            if few.size and first + few[0] < n_iterations:
                return int(first + few[0])
            first, number = first + len(counts), number + 1
        return None

    def iterations_of_epochs(self, epochs: float) -> int:
        """Number of iterations in which training visits the samples `epochs` times.

        A fraction of an epoch is that fraction of its batches, rounded up. The length of a
        mixture's epoch is the number of samples in all its datasets.
        """
        if n_samples := self._batches.samples_of_epoch:
            each = np.ones_like(self._used.inputs)
            return self._iterations_until(_rounded_up(epochs * n_samples), each, 2**62)
        n_counted = max(1, MAX_COUNTED_SAMPLES // len(self._used.inputs))
        whole = min(int(epochs), n_counted)
        with self._lock:
            while len(self._first_iterations) <= whole:
                self._find(self._first_iterations[-1])
            if epochs > n_counted:
                return _rounded_up(epochs * self._first_iterations[whole] / whole)
            part = (epochs - whole) * self._block(whole).n_batches
        return self._first_iterations[whole] + _rounded_up(part)

    def iterations_of_tokens(self, tokens: int, most: int) -> int:
        """Least number of iterations with `tokens` tokens in their samples, but at most `most`."""
        return self._iterations_until(tokens, self._used.lengths, most)

    def _iterations_until(self, total: int, amounts: Tokens, most: int) -> int:
        n, number, n_samples, done = 0, 0, 0, 0
        while n < most:
            if n_samples > MAX_COUNTED_SAMPLES:
                return min(most, n + _rounded_up((total - done) / (done / n)))
            with self._lock:
                self._find(n)
                block = self._block(number)
            reached = np.cumsum(amounts[block.samples])[np.array(block.starts[1:]) - 1]
            if done + reached[-1] >= total:
                return min(most, n + int(np.searchsorted(reached, total - done)) + 1)
            n, number = n + block.n_batches, number + 1
            n_samples, done = n_samples + len(block.samples), done + int(reached[-1])
        return most

    def _find(self, k: int) -> None:
        while k >= (n_known := self._first_iterations[-1]):
            n_batches = self._block(len(self._first_iterations) - 1).n_batches
            if not n_batches:
                raise InputError(
                    f"data.mixture: after {n_known:,} iterations all datasets have reached their "
                    "limit of epochs, so that there is no further batch; train for at most as many "
                    "iterations (training.iterations), or allow more epochs"
                )
            self._first_iterations.append(n_known + n_batches)


def _rounded_up(number: float) -> int:
    """A number rounded to 6 decimals, then up: an error in its last bits does not count."""
    return math.ceil(round(number, 6))


Hashes = npt.NDArray[np.uint64]


def hashes_of(sample_ids: Integers) -> Hashes:
    """Hash of every id: SplitMix64 with the id as its state, shape (n,).

    Source: Steele, Lea and Flood, "Fast splittable pseudorandom number generators", OOPSLA 2014.
    """
    state = sample_ids.astype(np.uint64) + np.uint64(0x9E3779B97F4A7C15)
    state = (state ^ (state >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    state = (state ^ (state >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    hashes: Hashes = state ^ (state >> np.uint64(31))
    return hashes


def are_held_out(sample_ids: Integers, share: float) -> npt.NDArray[np.bool_]:
    """Whether each sample is held out, shape (n,); a larger share only adds held-out samples.

    `sample_ids`: Ids of samples, shape (n,). `share`: Expected share of held-out samples, 0 <=
    share < 1.
    """
    held: npt.NDArray[np.bool_] = hashes_of(sample_ids) < np.uint64(int(share * 2**64))
    return held


def evaluated_samples(
    used: UsedTokens, sample_ids: Tokens, task_ids: Tokens, *, most_tokens: int, n_least: int
) -> list[Sample]:
    """The samples of an evaluation, in the order of the hashes of their ids.

    `n_least`: Number of samples that are taken even if they exceed `most_tokens` tokens.
    """
    ordered = sample_ids[np.argsort(hashes_of(sample_ids), kind="stable")]
    tokens = used.lengths[ordered]
    n_fitting = int(np.searchsorted(np.cumsum(tokens), most_tokens, side="right"))
    return used.samples(ordered[: max(n_least, n_fitting)], task_ids)


def in_batches(
    samples: Iterable[Sample], tokens_per_batch: int, n_least: int
) -> list[list[Sample]]:
    """Consecutive batches of up to `tokens_per_batch` tokens, but of at least `n_least` samples."""
    batches: list[list[Sample]] = [[]]
    n_tokens = 0
    for sample in samples:
        n_tokens += sample.tokens
        if n_tokens > tokens_per_batch and len(batches[-1]) >= n_least:
            batches.append([])
            n_tokens = sample.tokens
        batches[-1].append(sample)
    if len(batches) > 1 and len(batches[-1]) < n_least:
        batches[-2:] = [batches[-2] + batches[-1]]
    return batches
