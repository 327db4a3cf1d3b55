"""Windows whose samples lie in one row, end to end."""

from dataclasses import dataclass
from typing import Self

import numpy as np

from dynapipe_hpc.data.microbatch import Layout
from dynapipe_hpc.plan.cluster import Cluster
from dynapipe_hpc.planner.batch.memory import BoolArray
from dynapipe_hpc.planner.batch.row_length import padded
from dynapipe_hpc.planner.batch.windows.layout_windows import ShapesOfRows
from dynapipe_hpc.planner.cost.cost_model import IntArray, KnownRows, Shapes

FEWEST_LIMITED = 256
"""Least number of bundles of a batch whose windows are limited; fewer take little time."""
WINDOWS_PER_STAGE = 2
"""Fewest windows of several samples that a replica has per stage in such a batch."""


@dataclass(frozen=True, slots=True, eq=False)
class PackedWindows:
    """Windows of packed rows, see `LayoutWindows`: tokens and pairs of a window are sums.

    Unlike padding, sums never make large windows bad by themselves, but fewer than two per stage
    would leave stages idle. In a batch of many samples, windows of several therefore have no more
    tokens than such a share of a replica's, or than the two longest samples.

    Attributes:
        begin: Beginnings of bundles in the samples, and the end of the last bundle.
        tokens: Tokens of all samples before each bundle, and of all, shape (n_bundles + 1,).
        pairs: Sum of their squared lengths, likewise.
        most_tokens: Limit on windows of several bundles.
        known: Rows that the cost model knows.
    """

    begin: IntArray
    tokens: IntArray
    pairs: IntArray
    most_tokens: float
    known: KnownRows

    @classmethod
    def of(cls, lengths: IntArray, begin: IntArray, known: KnownRows, cluster: Cluster) -> Self:
        """Windows of bundles of samples with the given numbers of tokens."""
        tokens, pairs = (
            np.concatenate([[0], np.cumsum(side)])[begin] for side in (lengths, lengths**2)
        )
        n_windows = WINDOWS_PER_STAGE * cluster.n_plans
        most = max(lengths.sum() / n_windows, 2 * lengths.max())
        is_large = len(begin) > FEWEST_LIMITED
        return cls(begin, tokens, pairs, float(most) if is_large else np.inf, known)

    @property
    def layout(self) -> Layout:
        """Packed."""
        return Layout.PACKED

    def begin_rows(self) -> BoolArray:
        """Everywhere: sums differ."""
        return np.ones(len(self.begin) - 1, np.bool_)

    def begin_rows_within(self, begins: BoolArray, _reach: IntArray, /) -> BoolArray:
        """The same."""
        return begins

    def most(self, first: IntArray) -> IntArray:
        """Largest number of bundles within the limit, at least one."""
        end = np.searchsorted(self.tokens, self.tokens[first] + self.most_tokens, side="right") - 1
        return np.asarray(np.maximum(end - first, 1))

    def shapes(self, first: IntArray, size: IntArray) -> Shapes:
        """Equal rows with as many tokens and pairs, see `Shapes.packed`."""
        end = first + size
        tokens, pairs, n_samples = (
            sums[end] - sums[first] for sums in (self.tokens, self.pairs, self.begin)
        )
        return Shapes.packed(padded(tokens), pairs, n_samples, self.known)

    def shapes_of_rows(self, first: IntArray, most: IntArray) -> ShapesOfRows:
        """A shape per window, as hardly any two are alike."""
        before = np.repeat(np.cumsum(most) - most, most)
        size = np.arange(1, len(before) + 1) - before
        shapes = self.shapes(np.repeat(first, most), size)
        return ShapesOfRows(np.arange(len(size), dtype=np.int32), shapes)
