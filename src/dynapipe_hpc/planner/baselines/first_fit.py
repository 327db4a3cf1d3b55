"""First-fit decreasing bin packing, in one or more dimensions."""

import numpy as np
import numpy.typing as npt

Tokens = npt.NDArray[np.int64]


def first_fit_decreasing(needed: Tokens, capacity: Tokens) -> list[list[int]]:
    """Packs items into equal bins, each item into the first that has room for it.

    Items come in decreasing order of the largest share that they take of any dimension; items
    of the same share in the order given.

    Args:
        needed: Sizes of items, at most `capacity`, shape (n_items, n_dimensions).
        capacity: Sizes of a bin, >= 1, shape (n_dimensions,).

    Returns:
        Per bin its items, as they were put in.

    Source:
        Johnson, "Near-optimal bin packing algorithms", MIT 1973.
    """
    free = np.tile(capacity, (len(needed), 1))
    bins: list[list[int]] = []
    for item in np.argsort(-(needed / capacity).max(axis=1), kind="stable").tolist():
        has_room = (free[: len(bins) + 1] >= needed[item]).all(axis=1)
        first = int(has_room.argmax())
        if first == len(bins):
            bins.append([])
        bins[first].append(item)
        free[first] -= needed[item]
    return bins
