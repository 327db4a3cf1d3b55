"""Samples that pass through the pipeline together."""

from dataclasses import dataclass
from enum import IntEnum


class Recompute(IntEnum):
    """What a backward pass computes again instead of having kept it since the forward pass."""

    NONE = 0
    SELECTIVE = 1
    FULL = 2

    @classmethod
    def of(cls, text: str) -> "Recompute":
        """The mode of a name in lower case, as `text` writes it."""
        return cls[text.upper()]

    @property
    def text(self) -> str:
        """Its name in configurations and files: none, selective or full."""
        return self.name.lower()


@dataclass(frozen=True, slots=True)
class MicroBatch:
    """A rectangle of tokens: rows of one length, each holding one or more whole samples.

    A padded micro-batch holds one sample per row; a densely packed one several, in order,
    with attention over the whole row. What a row's samples leave free is padding.

    Attributes:
        rows: Sample ids, row by row; no row is empty.
        row_tokens: Length of every row in tokens, padding included.
        recompute: What its backward passes compute again, on every stage.
        target_tokens: Length of the rows on the decoder side of an encoder-decoder model, which
            has inputs in `row_tokens`; 0 in a decoder-only one, whose rows hold both.
    """

    rows: tuple[tuple[int, ...], ...]
    row_tokens: int
    recompute: Recompute = Recompute.NONE
    target_tokens: int = 0

    @property
    def n_rows(self) -> int:
        """Number of rows."""
        return len(self.rows)

    @property
    def sample_ids(self) -> tuple[int, ...]:
        """Samples in row order."""
        return tuple(sample_id for row in self.rows for sample_id in row)

    @property
    def padded_tokens(self) -> int:
        """Tokens computed, padding included."""
        return self.n_rows * (self.row_tokens + self.target_tokens)
