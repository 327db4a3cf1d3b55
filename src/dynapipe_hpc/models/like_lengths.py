"""Documents of a packed row as rows of like length, for kernels that compute on rows."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Self

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from dynapipe_hpc.models.tokens.to_device import to_device

FINEST = 16
STEPS_PER_DOUBLING = 8


@dataclass(frozen=True, slots=True, eq=False)
class LikeLengths:
    """Groups of documents that are rows of one padded length, the shortest group first.

    The padded length of a document depends on its own length only, so that what a kernel computes
    of it has the same bits whatever its neighbours are.

    Attributes:
        sizes: Number of rows and their length in tokens, of each group.
        sources: Position in the packed row that each token of all rows is copied from, int64;
            padding repeats the last token of its document.
        places: Where each token of the packed row is among those of all rows, int64.
    """

    sizes: tuple[tuple[int, int], ...]
    sources: Tensor
    places: Tensor

    @classmethod
    def of(cls, offsets: Sequence[int], device: torch.device) -> Self:
        """Groups of the documents between offsets, copied to a device."""
        starts, lengths = np.array(offsets[:-1]), np.diff(offsets)
        rows = padded_lengths(lengths)
        order = np.argsort(rows, kind="stable")
        starts, lengths, rows = starts[order], lengths[order], rows[order]
        ends = np.cumsum(rows)
        within = np.arange(ends[-1]) - np.repeat(ends - rows, rows)
        last = np.repeat(lengths - 1, rows)
        sources = np.repeat(starts, rows) + np.minimum(within, last)
        is_token = within <= last
        places = np.empty(offsets[-1], np.int64)
        places[sources[is_token]] = np.flatnonzero(is_token)
        sizes = zip(*(n.tolist() for n in np.unique(rows, return_counts=True)), strict=True)
        return cls(
            tuple((count, length) for length, count in sizes),
            to_device(torch.from_numpy(sources), device),
            to_device(torch.from_numpy(places), device),
        )


def padded_lengths(lengths: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
    """Lengths rounded up to a multiple of 16; from 128 on to eight steps per doubling.

    A long document is padded by an eighth at most, and there are few different lengths: 40 up to
    2,048 tokens.
    """
    doubling = np.exp2(np.floor(np.log2(lengths))).astype(np.int64)
    steps = np.maximum(FINEST, doubling // STEPS_PER_DOUBLING)
    rounded: npt.NDArray[np.int64] = -(-lengths // steps) * steps
    return rounded
