"""Held-out samples, chosen by a hash of their ids, and those of an evaluation, in batches."""

from collections.abc import Iterable

import numpy as np
import numpy.typing as npt

from dynapipe_hpc.data.dataset.long_samples import Tokens, UsedTokens
from dynapipe_hpc.data.sample import Sample

Integers = npt.NDArray[np.integer]
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
    """Whether each sample is held out, shape (n,); a larger share holds out the same and more.

    `sample_ids`: Ids of samples, shape (n,). `share`: Expected share of held-out samples, 0 <=
    share < 1.
    """
    held: npt.NDArray[np.bool_] = hashes_of(sample_ids) < np.uint64(int(share * 2**64))
    return held


def evaluated_samples(
    used: UsedTokens, sample_ids: Tokens, task_ids: Tokens, *, most_tokens: int, n_least: int
) -> list[Sample]:
    """The samples of an evaluation, in the order of the hashes of their ids.

    `n_least`: Number of samples that are taken even if they have more tokens.
    """
    ordered = sample_ids[np.argsort(hashes_of(sample_ids), kind="stable")]
    tokens = used.lengths[ordered]
    n_fitting = int(np.searchsorted(np.cumsum(tokens), most_tokens, side="right"))
    return used.samples(ordered[: max(n_least, n_fitting)], task_ids)


def in_batches(
    samples: Iterable[Sample], tokens_per_batch: int, n_least: int
) -> list[list[Sample]]:
    """Consecutive batches of up to so many tokens, but of at least `n_least` samples."""
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
