"""Documents in packed rows: their groups by length, and the tokens that each document sees."""

import math
from collections.abc import Sequence
from dataclasses import dataclass, field, fields, replace
from functools import cached_property
from itertools import accumulate
from typing import Any, NamedTuple, Self

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from dynapipe_hpc.data.microbatch import MAX_FILL_TOKENS, PackedRow


class OnDevice:
    """Base of dataclasses that hold tensors, all on one device."""

    def to(self, device: torch.device) -> Self:
        """A copy on a device; the same object if it is already there."""
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

    Documents attend to themselves, or each to a document of another row; in that case, the attended
    documents of a group have one padded length, too. The padded length of a document depends on its
    own length only, so that a kernel's results for it have the same bits whatever its neighbours
    are.

    `tokens`: Position in the packed row that each token of all rows is copied from, int64; padding
    repeats the last token of its document. `source_lengths`: Length without padding of each
    attended document, shape (n_documents,), int64.
    """

    sizes: tuple[GroupSize, ...]
    tokens: Tensor
    source_tokens: Tensor
    source_lengths: Tensor
    places: Tensor  # index of each token of the packed row among the tokens of all rows, int64

    @classmethod
    def from_offsets(
        cls,
        offsets: Sequence[int],
        device: torch.device,
        source_offsets: Sequence[int] | None = None,
    ) -> Self:
        """Groups of the documents between offsets, on a device.

        `source_offsets`: Offsets of the documents of another row that are attended to, in the same
        order; documents without a counterpart attend to the shortest. None for the same documents.
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
        """Position that each token of padded documents is copied from; whether it is not fill."""
        ends = np.cumsum(self.padded)
        within = np.arange(ends[-1]) - np.repeat(ends - self.padded, self.padded)
        last = np.repeat(self.lengths - 1, self.padded)
        return np.repeat(self.starts, self.padded) + np.minimum(within, last), within <= last


def padded_lengths(lengths: IntArray) -> IntArray:
    """Lengths rounded up to a multiple of 16, or from 128 on to one of eight steps per doubling.

    A long document is padded by an eighth at most, and there are only 40 different lengths up to
    2,048 tokens.
    """
    doubling = np.exp2(np.floor(np.log2(lengths))).astype(np.int64)
    steps = np.maximum(FINEST, doubling // STEPS_PER_DOUBLING)
    rounded: IntArray = -(-lengths // steps) * steps
    return rounded


@dataclass(frozen=True, eq=False)
class Documents(OnDevice):
    """Documents of a packed row: its samples end to end, and behind them what fills it up."""

    offsets: tuple[int, ...]  # position at which each document begins, and the end of the row
    cu_seqlens: Tensor  # the same on a device, int32, shape (documents + 1,)

    @classmethod
    def between(cls, offsets: tuple[int, ...], row_tokens: int) -> Self:
        """The documents between offsets, and one that fills up the row if needed, on the host."""
        fill = range(offsets[-1], row_tokens, MAX_FILL_TOKENS)
        return cls.from_offsets((*offsets[:-1], *fill, row_tokens))

    @classmethod
    def from_lengths(cls, lengths: Sequence[int]) -> Self:
        """Documents of given lengths that fill their row, on the host."""
        return cls.from_offsets(tuple(accumulate(lengths, initial=0)))

    @classmethod
    def from_offsets(cls, offsets: tuple[int, ...]) -> Self:
        return cls(offsets, torch.tensor(offsets, dtype=torch.int32))

    @property
    def lengths(self) -> list[int]:
        lengths: list[int] = np.diff(self.offsets).tolist()
        return lengths

    @cached_property
    def longest(self) -> int:
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
        """The documents as rows, grouped by padded length, for kernels that need rows."""
        return LengthGroups.from_offsets(self.offsets, self.cu_seqlens.device)


@dataclass(frozen=True, eq=False)
class Branches(OnDevice):
    """Texts of a packed row of preference pairs, which holds the prompt of a pair only once.

    A prompt with its chosen answer attends to itself. A rejected answer attends to the prompt and
    to itself, with the positions that it would have behind a copy of the prompt.

    `texts`: Documents of the row: prompts with chosen answers, rejected answers, and fill.
    `sources`: Documents that texts attend to: the texts, rejected answers behind their prompt.
    """

    texts: Documents
    sources: Documents
    source_tokens: Tensor  # position in the row of every token of `sources`, int64
    positions: Tensor  # position of every token in its text, shape (row_tokens,), int64

    @classmethod
    def from_row(cls, row: PackedRow) -> Self:
        begins = np.array(row.offsets[:-1], np.int64)
        of_pairs = np.array([(b.begin, b.prompt_tokens) for b in row.branches], np.int64)
        bounds = np.stack([begins, of_pairs[:, 0]], axis=1).ravel().tolist()
        texts = Documents.between((*bounds, row.offsets[-1]), row.row_tokens)
        starts, lengths = np.array(texts.offsets[:-1], np.int64), np.diff(texts.offsets)
        prompt_starts, n_prompt = np.zeros_like(starts), np.zeros_like(starts)
        rejected = slice(1, 2 * len(begins), 2)
        prompt_starts[rejected], n_prompt[rejected] = begins, of_pairs[:, 1]
        n_sources = n_prompt + lengths
        ends = np.cumsum(n_sources)
        places = np.arange(ends[-1]) - np.repeat(ends - n_sources, n_sources)
        before, shift, own_shift = (
            np.repeat(each, n_sources) for each in (n_prompt, prompt_starts, starts - n_prompt)
        )
        source_tokens = places + np.where(places < before, shift, own_shift)
        return cls(
            texts,
            Documents.from_lengths(n_sources.tolist()),
            torch.from_numpy(source_tokens),
            torch.from_numpy(np.arange(lengths.sum()) + np.repeat(n_prompt - starts, lengths)),
        )

    def gather(self, side: Tensor) -> Tensor:
        """Keys or values of `sources`, from the row's keys or values."""
        return side.index_select(0, self.source_tokens)

    def scatter(self, gradients: Tensor, n_tokens: int) -> Tensor:
        """Gradients of the row's keys or values, from the gradients of `sources`."""
        # A prompt is a source of two texts at most, and a sum of two terms has no order.
        zeros = gradients.new_zeros(n_tokens, *gradients.shape[1:])
        return zeros.index_add_(0, self.source_tokens, gradients)


@dataclass(frozen=True, eq=False)
class SlicedRow(OnDevice):
    """A packed row that begins with a slice of a sample."""

    begin: int  # token of the sample with which the slice begins
    slice: Documents
    others: Documents | None  # the documents behind it; None if there are none
    _keys: dict[int, Documents] = field(default_factory=dict, init=False)

    @classmethod
    def from_documents(cls, documents: Documents, begin: int) -> Self:
        """The row of documents whose first one is a slice, on the host."""
        n_tokens, *ends = documents.offsets[1:]
        others = tuple(end - n_tokens for end in (n_tokens, *ends))
        first = Documents.from_lengths([n_tokens])
        return cls(begin, first, Documents.from_offsets(others) if ends else None)

    @property
    def positions(self) -> Tensor:
        """Position of every token in its sample, shape (row_tokens,)."""
        positions = self.slice.positions + self.begin
        return positions if self.others is None else torch.cat([positions, self.others.positions])

    def first_key(self, window: int | None) -> int:
        """The first token that the slice attends to, if a query sees at most `window` keys."""
        return 0 if window is None else max(0, self.begin - window + 1)

    def keys(self, first: int) -> Documents:
        """Tokens from `first` to the end of the slice, made once for all layers."""
        if first not in self._keys:
            keys = Documents.from_lengths([self.begin + self.slice.longest - first])
            self._keys[first] = keys.to(self.slice.cu_seqlens.device)
        return self._keys[first]


Segments = Documents | Branches | SlicedRow
"""Documents of a packed row, and what each sees: itself, the prompt before it, earlier slices."""


def segments_of(row: PackedRow) -> Segments:
    """The documents of a packed row and what each sees, on the host."""
    if row.branches:
        return Branches.from_row(row)
    documents = Documents.between(row.offsets, row.row_tokens)
    return SlicedRow.from_documents(documents, row.slice.begin) if row.slice else documents
