"""Micro-batches: samples that pass through the pipeline together."""

from collections.abc import Sequence
from dataclasses import dataclass
from enum import IntEnum
from typing import NamedTuple

MAX_FILL_TOKENS = 128
"""Most tokens of a document that fills up a packed row: so many as kernels want in a multiple."""


class Recompute(IntEnum):
    """Activation checkpointing mode: what a backward pass recomputes instead of having it kept."""

    NONE = 0
    SELECTIVE = 1
    FULL = 2

    @classmethod
    def of(cls, text: str) -> "Recompute":
        """The mode with a name in lower case, as `text` writes it."""
        return cls[text.upper()]

    @property
    def text(self) -> str:
        """Name of the mode in configurations and files: none, selective or full."""
        return self.name.lower()


class Layout(IntEnum):
    """Arrangement of a micro-batch's samples in its rows; the rest of a row is padding.

    Attributes:
        PADDED: One sample per row.
        DENSE: Several samples per row, in order, with attention over the whole row.
        PACKED: One row of samples laid end to end, with attention within each of them only
            (variable-length attention); positions begin at 0 in each. What fills the row up are
            documents of `MAX_FILL_TOKENS` tokens and one of fewer.
    """

    PADDED = 0
    DENSE = 1
    PACKED = 2

    @classmethod
    def of(cls, text: str) -> "Layout":
        """The layout with a name in lower case, as `text` writes it."""
        return cls[text.upper()]

    @property
    def text(self) -> str:
        """Name of the layout in configurations and files: padded, dense or packed."""
        return self.name.lower()


class Way(NamedTuple):
    """Mode in which the samples of a micro-batch are run.

    Attributes:
        layout: How they lie in rows.
        recompute: Activation checkpointing mode.
    """

    layout: Layout
    recompute: Recompute


def describe_ways(ways: Sequence[Way]) -> str:
    """Layouts and modes of all combinations of some layouts with some modes."""
    layouts = " and ".join(layout.text for layout in sorted({way.layout for way in ways}))
    modes = ", ".join(mode.text for mode in sorted({way.recompute for way in ways}))
    return f"{layouts}, recompute {modes}"


@dataclass(frozen=True, slots=True)
class MicroBatch:
    """A micro-batch: rows of equal length in tokens, each holding one or more complete samples.

    Attributes:
        rows: Sample ids, row by row; no row is empty.
        row_tokens: Length of every row in tokens, padding included.
        recompute: Activation checkpointing mode of its backward passes, on every stage.
        target_tokens: Length of the decoder's rows in an encoder-decoder model, whose encoder
            rows have `row_tokens`; 0 in a decoder-only model, whose rows hold input and target.
        layout: How samples lie in rows.
        offsets: Position at which each sample of a packed row begins, and the end of the last
            (`cu_seqlens`); empty in other layouts.
        target_offsets: The same for the decoder's row; empty in a decoder-only model.
    """

    rows: tuple[tuple[int, ...], ...]
    row_tokens: int
    recompute: Recompute = Recompute.NONE
    target_tokens: int = 0
    layout: Layout = Layout.PADDED
    offsets: tuple[int, ...] = ()
    target_offsets: tuple[int, ...] = ()

    @property
    def n_rows(self) -> int:
        """Number of rows."""
        return len(self.rows)

    @property
    def sample_ids(self) -> tuple[int, ...]:
        """Ids of the samples, in row order."""
        return tuple(sample_id for row in self.rows for sample_id in row)

    @property
    def padded_tokens(self) -> int:
        """Tokens computed, padding included."""
        return self.n_rows * (self.row_tokens + self.target_tokens)
