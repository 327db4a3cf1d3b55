"""Held-out samples, chosen by a hash of their ids."""

import numpy as np
import numpy.typing as npt

Integers = npt.NDArray[np.integer]
Hashes = npt.NDArray[np.uint64]


def hashes_of(sample_ids: Integers) -> Hashes:
    """Hash of every id: SplitMix64 with the id as its state, shape (n,).

    Source:
        Steele, Lea and Flood, "Fast splittable pseudorandom number generators", OOPSLA 2014.
    """
    state = sample_ids.astype(np.uint64) + np.uint64(0x9E3779B97F4A7C15)
    state = (state ^ (state >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    state = (state ^ (state >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    hashes: Hashes = state ^ (state >> np.uint64(31))
    return hashes


def are_held_out(sample_ids: Integers, share: float) -> npt.NDArray[np.bool_]:
    """Whether each sample is held out, shape (n,); a larger share holds out the same and more.

    Args:
        sample_ids: Ids of samples, shape (n,).
        share: Expected share of held-out samples, 0 <= share < 1.
    """
    held: npt.NDArray[np.bool_] = hashes_of(sample_ids) < np.uint64(int(share * 2**64))
    return held
