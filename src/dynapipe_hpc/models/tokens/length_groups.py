"""Documents of a packed row as rows of like length, for kernels that compute on rows."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple, Self

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from dynapipe_hpc.models.tokens.padding_mask import padding_mask
from dynapipe_hpc.models.tokens.to_device import to_device

FINEST = 16
STEPS_PER_DOUBLING = 8

IntArray = npt.NDArray[np.int64]


class GroupSize(NamedTuple):
    """Size of a group of documents.

    Attributes:
        n_rows: Number of documents, each of which is a row.
        tokens: Padded length of the documents.
        source_tokens: Padded length of the documents that they attend to.
    """

    n_rows: int
    tokens: int
    source_tokens: int


@dataclass(frozen=True, slots=True, eq=False)
class LengthGroups:
    """Groups of documents that are rows of one padded length, the shortest group first.

    Documents attend to themselves, or each to one of another row; the documents of a group then
    attend to documents of one padded length, too. The padded length of a document depends on its
    own length only, so that what a kernel computes of it has the same bits whatever its neighbours
    are.

    Attributes:
        tokens: Position in the packed row that each token of all rows is copied from, int64;
            padding repeats the last token of its document.
        source_tokens: The same for the documents that are attended to.
        source_lengths: Length of each of these without padding, shape (n_documents,), int64.
        places: Where each token of the packed row is among those of all rows, int64.
    """

    sizes: tuple[GroupSize, ...]
    tokens: Tensor
    source_tokens: Tensor
    source_lengths: Tensor
    places: Tensor

    @classmethod
    def from_offsets(
        cls,
        offsets: Sequence[int],
        device: torch.device,
        source_offsets: Sequence[int] | None = None,
    ) -> Self:
        """Groups of the documents between offsets, copied to a device.

        Args:
            offsets: Beginnings of the documents in their row, and the end of the last.
            device: Device that computes.
            source_offsets: Offsets of the documents of another row that are attended to, in the
                same order; those that have none there attend to the shortest. None if documents
                attend to themselves.
        """
        own = sources = _Documents.between(offsets)
        if source_offsets is not None:
            sources = _Documents.between(source_offsets)
            attended = np.arange(len(own.starts))
            attended[len(sources.starts) :] = sources.lengths.argmin()
            sources = sources.take(attended)
        order = np.lexsort((sources.padded, own.padded))
        own, sources = own.take(order), sources.take(order)
        tokens, is_token = own.tokens()
        source_tokens = tokens if source_offsets is None else sources.tokens()[0]
        places = np.empty(offsets[-1], np.int64)
        places[tokens[is_token]] = np.flatnonzero(is_token)
        lengths = np.stack([own.padded, sources.padded], axis=1)
        of_groups, counts = np.unique(lengths, axis=0, return_counts=True)
        sizes = zip(counts.tolist(), *of_groups.T.tolist(), strict=True)
        arrays = (tokens, source_tokens, sources.lengths, places)
        on_device = (to_device(torch.from_numpy(array), device) for array in arrays)
        return cls(tuple(map(GroupSize._make, sizes)), *on_device)

    def padding_masks(self, dtype: torch.dtype) -> list[Tensor]:
        """Padding mask of each group: shape (rows, 1, 1, source tokens)."""
        lengths = torch.split(self.source_lengths, [size.n_rows for size in self.sizes])
        return [
            padding_mask(of_group, size.source_tokens, dtype)
            for of_group, size in zip(lengths, self.sizes, strict=True)
        ]


class _Documents(NamedTuple):
    """Documents of a row. Arrays of shape (n_documents,)."""

    starts: IntArray
    lengths: IntArray
    padded: IntArray

    @classmethod
    def between(cls, offsets: Sequence[int]) -> "_Documents":
        lengths = np.diff(offsets)
        return cls(np.array(offsets[:-1]), lengths, padded_lengths(lengths))

    def take(self, documents: IntArray) -> "_Documents":
        return _Documents(*(each[documents] for each in self))

    def tokens(self) -> tuple[IntArray, npt.NDArray[np.bool_]]:
        """Position that each token of the padded documents is copied from; whether it is one."""
        ends = np.cumsum(self.padded)
        within = np.arange(ends[-1]) - np.repeat(ends - self.padded, self.padded)
        last = np.repeat(self.lengths - 1, self.padded)
        return np.repeat(self.starts, self.padded) + np.minimum(within, last), within <= last


def padded_lengths(lengths: IntArray) -> IntArray:
    """Lengths rounded up to a multiple of 16; from 128 on to eight steps per doubling.

    A long document is padded by an eighth at most, and there are few different lengths: 40 up to
    2,048 tokens.
    """
    doubling = np.exp2(np.floor(np.log2(lengths))).astype(np.int64)
    steps = np.maximum(FINEST, doubling // STEPS_PER_DOUBLING)
    rounded: IntArray = -(-lengths // steps) * steps
    return rounded
