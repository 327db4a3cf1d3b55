"""Documents in packed rows, and their groups of similar lengths."""

import math
from collections.abc import Sequence
from dataclasses import dataclass, fields, replace
from functools import cached_property
from itertools import accumulate, pairwise
from typing import Any, NamedTuple, Self

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from dynapipe_hpc.data.microbatch import MAX_FILL_TOKENS, MicroBatch, PackedRow


class OnDevice:
    """Base of dataclasses that hold tensors, which all are on one device."""

    def to(self, device: torch.device) -> Self:
        """A copy on a device; itself if it is there."""
        parts = {each.name: getattr(self, each.name) for each in fields(self) if each.init}  # type: ignore[arg-type]
        moved = {name: _moved(part, device) for name, part in parts.items()}
        if all(moved[name] is part for name, part in parts.items()):
            return self
        return replace(self, **moved)  # type: ignore[type-var]


def _moved(value: Any, device: torch.device) -> Any:
    if isinstance(value, Tensor):
        return to_device(value, device)
    if isinstance(value, OnDevice):
        return value.to(device)
    if isinstance(value, tuple) and value and isinstance(value[0], Tensor):
        return tuple(_moved(each, device) for each in value)
    return value


def to_device(tensor: Tensor, device: torch.device) -> Tensor:
    """The tensor on a device; the copy to a GPU runs behind what was launched before."""
    if device.type in {"cpu", "meta", tensor.device.type}:
        return tensor.to(device)
    return tensor.pin_memory().to(device, non_blocking=True)


def padding_mask(lengths: Tensor, n_tokens: int, dtype: torch.dtype) -> Tensor:
    """Padding mask, added to scores: shape (rows, 1, 1, n_tokens)."""
    places = torch.arange(n_tokens, device=lengths.device)
    is_padding = places >= lengths[:, None]
    mask = torch.zeros_like(is_padding, dtype=dtype).masked_fill_(is_padding, -math.inf)
    return mask[:, None, None, :]


FINEST = 16
STEPS_PER_DOUBLING = 8

IntArray = npt.NDArray[np.int64]


class GroupSize(NamedTuple):
    """Size of a group of documents."""

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

    `tokens`: Position in the packed row that each token of all rows is copied from, int64; padding
    repeats the last token of its document. `source_lengths`: Length of each of these without
    padding, shape (n_documents,), int64. `places`: Where each token of the packed row is among
    those of all rows, int64.
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

        `offsets`: Beginnings of the documents in their row, and the end of the last.
        `source_offsets`: Offsets of the documents of another row that are attended to, in the same
        order; those that have none there attend to the shortest. None if documents attend to
        themselves.
        """
        documents = sources = _Documents.between(offsets)
        if source_offsets is not None:
            sources = _Documents.between(source_offsets)
            attended = np.arange(len(documents.starts))
            attended[len(sources.starts) :] = sources.lengths.argmin()
            sources = sources.take(attended)
        order = np.lexsort((sources.padded, documents.padded))
        documents, sources = documents.take(order), sources.take(order)
        tokens, is_token = documents.tokens()
        source_tokens = tokens if source_offsets is None else sources.tokens()[0]
        places = np.empty(offsets[-1], np.int64)
        places[tokens[is_token]] = np.flatnonzero(is_token)
        lengths = np.stack([documents.padded, sources.padded], axis=1)
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


@dataclass(frozen=True, eq=False)
class Documents(OnDevice):
    """Documents of a packed row: its samples end to end, and behind them what fills it up.

    `offsets`: Position at which each begins, and the end of the last, which is the row's.
    `cu_seqlens`: The same on a device, int32, shape (documents + 1,).
    """

    offsets: tuple[int, ...]
    cu_seqlens: Tensor

    @classmethod
    def from_microbatch(cls, microbatch: MicroBatch) -> Self | None:
        """The documents of a packed micro-batch, on the host; None in other layouts."""
        if not isinstance(microbatch, PackedRow):
            return None
        return cls.between(microbatch.offsets, microbatch.row_tokens)

    @classmethod
    def between(cls, offsets: tuple[int, ...], row_tokens: int) -> Self:
        """The documents between offsets, and what fills their row up, on the host."""
        fill = range(offsets[-1], row_tokens, MAX_FILL_TOKENS)
        return cls.from_offsets((*offsets[:-1], *fill, row_tokens))

    @classmethod
    def from_lengths(cls, lengths: Sequence[int]) -> Self:
        """Documents of given lengths that fill their row, on the host."""
        return cls.from_offsets(tuple(accumulate(lengths, initial=0)))

    @classmethod
    def from_offsets(cls, offsets: tuple[int, ...]) -> Self:
        """The documents between offsets, on the host."""
        return cls(offsets, torch.tensor(offsets, dtype=torch.int32))

    @property
    def lengths(self) -> list[int]:
        return [end - start for start, end in pairwise(self.offsets)]

    @cached_property
    def longest(self) -> int:
        """Length of the longest in tokens."""
        return max(self.lengths)

    @cached_property
    def positions(self) -> Tensor:
        """Position of every token in its document, shape (row_tokens,)."""
        n_tokens, starts = self.offsets[-1], self.cu_seqlens[:-1]
        # With the size given, the host need not wait for the device.
        first = starts.repeat_interleave(self.cu_seqlens.diff(), output_size=n_tokens)
        return torch.arange(n_tokens, device=first.device) - first

    @cached_property
    def length_groups(self) -> LengthGroups:
        """The documents as rows of like length, for kernels that need rows."""
        return LengthGroups.from_offsets(self.offsets, self.cu_seqlens.device)


@dataclass(frozen=True, eq=False)
class EncoderDecoderDocuments(OnDevice):
    """Documents of a packed micro-batch of an encoder-decoder model.

    `targets`: Documents of the decoder's row, in the same order.
    """

    inputs: Documents
    targets: Documents

    @classmethod
    def from_microbatch(cls, microbatch: MicroBatch) -> Self | None:
        """The documents of a packed micro-batch, on the host; None in other layouts."""
        if not isinstance(microbatch, PackedRow):
            return None
        return cls(
            Documents.between(microbatch.offsets, microbatch.row_tokens),
            Documents.between(microbatch.target_offsets, microbatch.target_tokens),
        )

    @cached_property
    def crossed(self) -> LengthGroups:
        """Targets as rows of like length that attend to inputs of like length.

        What fills the decoder's row attends to what fills the encoder's or, if nothing is left of
        that, to the shortest input; its loss has no weight, so neither has what it does there.
        """
        device = self.targets.cu_seqlens.device
        return LengthGroups.from_offsets(self.targets.offsets, device, self.inputs.offsets)


def check_offsets(
    sample_ids: Sequence[int], n_tokens: Sequence[int], offsets: Sequence[int], kind: str = "tokens"
) -> None:
    """Checks that the samples of a packed row are as long as its offsets say.

    Raises `ValueError`: A sample is longer or shorter.
    """
    for sample_id, n, (start, end) in zip(sample_ids, n_tokens, pairwise(offsets), strict=True):
        if n != end - start:
            raise ValueError(
                f"sample {sample_id} has {n} {kind}, but offsets {start} and {end} of a "
                "packed row around it; the plan was made for other samples"
            )
