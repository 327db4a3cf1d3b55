"""Samples that pass through the pipeline together."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class MicroBatch:
    """A rectangle of tokens: rows of one length, each holding one or more whole samples.

    A padded micro-batch holds one sample per row; a densely packed one several, in order,
    with attention over the whole row. What a row's samples leave free is padding.

    Attributes:
        rows: Sample ids, row by row; no row is empty.
        row_tokens: Length of every row in tokens, padding included.
    """

    rows: tuple[tuple[int, ...], ...]
    row_tokens: int

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
        return self.n_rows * self.row_tokens
