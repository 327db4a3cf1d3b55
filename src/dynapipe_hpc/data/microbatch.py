"""Micro-batches: samples that pass through the pipeline together."""

from collections.abc import Sequence
from dataclasses import dataclass
from enum import IntEnum
from typing import ClassVar, NamedTuple, Self

MAX_FILL_TOKENS = 128
"""Maximum length of a document that fills up a packed row: the largest multiple for kernels."""


class _Named(IntEnum):
    """Choice whose name in configurations and files is in lower case."""

    @classmethod
    def from_text(cls, text: str) -> Self:
        """The choice that has this `text`."""
        return cls[text.upper()]

    @property
    def text(self) -> str:
        """Name in configurations and files, as `none` or `packed`."""
        return self.name.lower()


class Recompute(_Named):
    """Activation checkpointing mode: what backward recomputes because it was not kept."""

    NONE = 0
    SELECTIVE = 1
    FULL = 2


class Layout(_Named):
    """Arrangement of a micro-batch's samples in its rows; the rest of a row is padding.

    Attributes:
        PADDED: One sample per row.
        DENSE: Several samples per row, in order, with attention over the entire row.
        PACKED: One row of samples laid end to end, with attention within each of them only
            (variable-length attention); positions begin at 0 in each. The row is filled up with
            documents of `MAX_FILL_TOKENS` tokens and one shorter document.
    """

    PADDED = 0
    DENSE = 1
    PACKED = 2


class ExecutionMode(NamedTuple):
    """Mode in which the samples of a micro-batch are run."""

    layout: Layout
    recompute: Recompute
    n_slices: int = 1  # number of slices that a sample is cut into; 1 if it is not cut
    n_kept: int = 0  # number of its last slices that recompute nothing, whatever `recompute` says


def describe_modes(modes: Sequence[ExecutionMode]) -> str:
    """Text of all combinations of some layouts with some recomputation modes."""
    layouts = " and ".join(layout.text for layout in sorted({mode.layout for mode in modes}))
    recomputes = ", ".join(each.text for each in sorted({mode.recompute for mode in modes}))
    n_slices = sorted({mode.n_slices for mode in modes if mode.n_slices > 1})
    slices = f", long samples in {' or '.join(map(str, n_slices))} slices" if n_slices else ""
    return f"{layouts}, recompute {recomputes}{slices}"


class Slice(NamedTuple):
    """Part of a sample that is too long to be a micro-batch alone.

    The parts of a sample are micro-batches of one replica. On every stage their forward passes run
    in ascending order, as each part attends to the keys and values of the parts before it, and
    their backward passes in descending order.
    """

    begin: int  # position in the sample of its first token
    end: int  # position after its last token
    n_tokens: int


class Branch(NamedTuple):
    """Rejected answer of a preference pair in a packed row.

    It lies behind the prompt and the chosen answer, and attends to the prompt and to itself, as if
    it followed the prompt.
    """

    begin: int  # position in the row at which it begins
    prompt_tokens: int  # number of tokens of the prompt, with which the sample begins


@dataclass(frozen=True, slots=True)
class PaddedRows:
    """A micro-batch with one sample in each row.

    Attributes:
        sample_ids: Ids of the samples, in row order; at least one.
        row_tokens: Length of every row in tokens, padding included.
        recompute: Activation checkpointing mode of its backward passes, on every stage.
        target_tokens: Length of the decoder's rows in an encoder-decoder model, whose encoder
            rows have `row_tokens`; 0 in a decoder-only model, whose rows hold input and target.
    """

    layout: ClassVar[Layout] = Layout.PADDED
    slice: ClassVar[None] = None

    sample_ids: tuple[int, ...]
    row_tokens: int
    recompute: Recompute = Recompute.NONE
    target_tokens: int = 0

    @property
    def rows(self) -> tuple[tuple[int, ...], ...]:
        """Sample ids, row by row."""
        return tuple([(sample_id,) for sample_id in self.sample_ids])

    @property
    def n_rows(self) -> int:
        """Number of rows."""
        return len(self.sample_ids)

    @property
    def padded_tokens(self) -> int:
        """Tokens computed, padding included."""
        return self.n_rows * (self.row_tokens + self.target_tokens)


@dataclass(frozen=True, slots=True)
class DenseRows:
    """A micro-batch with several samples in each row, each of which attends to all before it.

    Attributes:
        rows: Sample ids, row by row; no row is empty.
        row_tokens: Length of every row in tokens, padding included.
        recompute: Activation checkpointing mode, see `PaddedRows`.
        target_tokens: Length of the decoder's rows, see `PaddedRows`.
    """

    layout: ClassVar[Layout] = Layout.DENSE
    slice: ClassVar[None] = None

    rows: tuple[tuple[int, ...], ...]
    row_tokens: int
    recompute: Recompute = Recompute.NONE
    target_tokens: int = 0

    @property
    def sample_ids(self) -> tuple[int, ...]:
        """Ids of the samples, in row order."""
        return tuple([sample_id for row in self.rows for sample_id in row])

    @property
    def n_rows(self) -> int:
        """Number of rows."""
        return len(self.rows)

    @property
    def padded_tokens(self) -> int:
        """Tokens computed, padding included."""
        return self.n_rows * (self.row_tokens + self.target_tokens)


@dataclass(frozen=True, slots=True)
class PackedRow:
    """A micro-batch of one row, in which every sample attends to itself only.

    Preference pairs lie in it as their prompt, the chosen and the rejected answer.

    Attributes:
        sample_ids: Ids of the samples, in order; at least one.
        row_tokens: Length of the row in tokens, including the documents that fill it up.
        offsets: Position at which each sample begins, and the end of the last (`cu_seqlens`).
        recompute: Activation checkpointing mode, see `PaddedRows`.
        target_tokens: Length of the decoder's row, see `PaddedRows`.
        target_offsets: Offsets in the decoder's row; empty in a decoder-only model.
        slice: Part of the first sample that the row holds; None if it holds all of it.
        branches: Rejected answers of the samples, one each; empty if they are not preference pairs.
    """

    layout: ClassVar[Layout] = Layout.PACKED
    n_rows: ClassVar[int] = 1

    sample_ids: tuple[int, ...]
    row_tokens: int
    offsets: tuple[int, ...]
    recompute: Recompute = Recompute.NONE
    target_tokens: int = 0
    target_offsets: tuple[int, ...] = ()
    slice: Slice | None = None
    branches: tuple[Branch, ...] = ()

    @property
    def rows(self) -> tuple[tuple[int, ...], ...]:
        """Sample ids, row by row."""
        return (self.sample_ids,)

    @property
    def padded_tokens(self) -> int:
        """Tokens computed, padding included."""
        return self.row_tokens + self.target_tokens


MicroBatch = PaddedRows | DenseRows | PackedRow
"""Samples that pass through the pipeline together, in rows of equal length in tokens."""


def tokens_held(microbatch: MicroBatch, sample_id: int, n_tokens: int) -> range:
    """Positions, within a sample, of the tokens that a micro-batch holds: all, or a slice's."""
    part = microbatch.slice
    if part is None or sample_id != microbatch.sample_ids[0]:
        return range(n_tokens)
    return range(part.begin, part.end)
