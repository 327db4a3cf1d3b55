"""Global batches of a token budget: those of one dataset, epoch by epoch."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np
import numpy.typing as npt

from dynapipe_hpc.data.config import DataConfig
from dynapipe_hpc.data.dataset.long_samples import UsedTokens

Tokens = npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class BatchBlock:
    """Consecutive global batches: batch i is `samples[starts[i]:starts[i + 1]]`.

    Attributes:
        samples: Ids of the samples, in the order in which they are drawn.
        starts: Index at which each batch starts, and at which the last one ends.
    """

    samples: Tokens
    starts: Sequence[int]

    @property
    def n_batches(self) -> int:
        """Number of batches; none in blocks after the last batch of all."""
        return len(self.starts) - 1


class Batches(Protocol):
    """Global batches without end, or until datasets may not be repeated again, in blocks."""

    @property
    def samples_of_epoch(self) -> int | None:
        """Number of samples that count as an epoch; None if a block is one."""
        ...

    def block(self, number: int) -> BatchBlock:
        """Block of batches; the blocks before it have been asked for at least once."""
        ...

    def has_at_least(self, n_samples: int) -> bool:
        """Whether every batch is known to have this many samples; if not, it may have them."""
        ...


class EpochBatches:
    """Global batches of one dataset: a block is an epoch.

    An epoch visits all samples that are not left out as too long, in an order drawn from
    (seed, epoch). A batch never spans two epochs, so it holds no sample twice. If the last batch
    of an epoch has room left, it is dropped (each epoch drops other samples), unless it is the
    only one.
    """

    samples_of_epoch = None

    def __init__(self, used: UsedTokens, config: DataConfig) -> None:
        """Takes the samples, and their token budget and seed from the configuration."""
        self._kept, self._lengths = used.kept, used.lengths
        self._budget, self._seed = config.tokens_per_batch, config.seed

    def block(self, number: int) -> BatchBlock:
        """The batches of an epoch, at least one."""
        samples = self._kept[random_order(len(self._kept), self._seed, number)]
        starts, last_is_full = batch_starts(self._lengths[samples], self._budget)
        return BatchBlock(samples, starts if last_is_full or len(starts) == 2 else starts[:-1])

    def has_at_least(self, n_samples: int) -> bool:
        """Whether the budget holds this many of the longest samples."""
        longest = int(self._lengths[self._kept].max())
        return n_samples * longest <= self._budget and n_samples <= len(self._kept)


def random_order(n_samples: int, seed: int, epoch: int, dataset: int = 0) -> Tokens:
    """A random permutation that depends on nothing but its arguments.

    A `SeedSequence` joins the 32-bit words of its numbers without marking where one ends. The
    seed's upper word goes after the epoch, so that no two pairs of seed and epoch have the same
    words; a number of the dataset that is 0 changes nothing.

    It sorts raw random words, because NumPy keeps bit streams the same between versions but not
    the result of `Generator.permutation`.
    """
    entropy = np.random.SeedSequence([seed % 2**32, epoch, seed // 2**32, dataset])
    words = np.random.Philox(entropy).random_raw(n_samples)
    order: Tokens = np.argsort(words, kind="stable").astype(np.int64)
    return order


def batch_starts(
    lengths: Tokens, budget: int, earlier: Tokens | None = None
) -> tuple[list[int], bool]:
    """Cuts samples into batches that are as large as the budget allows.

    Args:
        lengths: Number of tokens of every sample, in the order of drawing.
        budget: Most tokens of a batch.
        earlier: Largest index at which a sample, or one before it, was drawn already, for every
            sample; -1 if none was. A batch ends before a sample that it has. None if none repeats.

    Returns:
        Index where each batch starts, and where the last one ends, which is the end of all samples;
        and whether that batch has no room left.
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
