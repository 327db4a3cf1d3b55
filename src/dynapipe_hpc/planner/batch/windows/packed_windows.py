"""Windows whose samples lie in one row, end to end."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Self

import numpy as np

from dynapipe_hpc.data.microbatch import Layout
from dynapipe_hpc.data.sample import Sample
from dynapipe_hpc.plan.cluster import Cluster
from dynapipe_hpc.planner.batch.memory import BoolArray
from dynapipe_hpc.planner.batch.objective import bottleneck_ms
from dynapipe_hpc.planner.batch.packed_shapes import Sums, packed_pair_shapes, packed_shapes
from dynapipe_hpc.planner.batch.row_length import (
    ROW_MULTIPLE,
    Preferences,
    RowLengths,
    document_lengths,
    padded,
)
from dynapipe_hpc.planner.batch.windows.layout_windows import ShapesOfRows
from dynapipe_hpc.planner.cost.cost_model import CostModel, IntArray, KnownRows, Shapes

FEWEST_LIMITED = 256
"""Least number of bundles of a batch whose windows are limited; fewer take little time."""
WINDOWS_PER_STAGE = 2
"""Fewest windows of several samples that a replica has per stage in such a batch."""
CHEAPER = 0.95
"""Ratio of times per token below which larger windows are cheap."""


def are_limited(begin: IntArray, cluster: Cluster) -> bool:
    """Whether windows of bundles that begin there are limited: not those of small batches."""
    return len(begin) > FEWEST_LIMITED and cluster.n_stages > 1


def large_are_cheap(samples: Sequence[Sample], cost: CostModel, cluster: Cluster) -> bool:
    """Whether packed windows of a share of the batch take less time per token than half as large.

    That is so where a fast GPU waits for launches. The share is that of `WINDOWS_PER_STAGE`.

    Args:
        samples: Samples of the batch.
        cost: Cost model, of whose modes the first is used.
        cluster: The stages and replicas.
    """
    lengths = document_lengths(samples, cost.is_encoder_decoder)
    n_rows = max(2.0, len(samples) / (WINDOWS_PER_STAGE * cluster.n_plans))
    means = (np.full(2, side.mean()) for side in lengths)
    shapes = Shapes.padded(n_rows * np.array([0.5, 1.0]), *means)
    packed = cost.of_layout(Layout.PACKED)
    half_ms, whole_ms = bottleneck_ms(packed.stage_costs(shapes, cost.recompute_modes[0]))
    return bool(whole_ms < CHEAPER * 2 * half_ms)


@dataclass(frozen=True, slots=True, eq=False)
class PackedWindows:
    """Windows of packed rows, see `LayoutWindows`: tokens and pairs of a window are sums.

    An encoder-decoder model has a row of inputs and one of targets.

    Unlike padding, sums never make large windows bad by themselves, but fewer than two per stage
    would leave stages idle. In a batch of many samples, windows of several therefore have no more
    tokens than such a share of a replica's, or than the two longest samples, or than the shortest
    row; and where windows twice as large are cheaper, twice as many.

    Attributes:
        begin: Beginnings of bundles in the samples, and the end of the last bundle.
        tokens: Tokens of all samples before each bundle, and of all, shape (n_bundles + 1,).
        sums: Sums over these samples, each of that shape; without targets if rows hold both sides.
        most_tokens: Limit on windows of several bundles.
        known: Rows that the cost model knows.
        token_multiple: Multiple that rows are filled up to.
    """

    begin: IntArray
    tokens: IntArray
    sums: tuple[IntArray, ...]
    most_tokens: float
    known: KnownRows
    token_multiple: int

    @classmethod
    def from_lengths(
        cls,
        lengths: RowLengths,
        begin: IntArray,
        known: KnownRows,
        cluster: Cluster,
        *,
        larger: bool = False,
        token_multiple: int = ROW_MULTIPLE,
        preferences: Preferences | None = None,
    ) -> Self:
        """Windows of bundles of samples that take the given positions in packed rows.

        Args:
            lengths: Positions that samples take.
            begin: Beginnings of bundles, and the end of the last.
            known: Rows that the cost model knows.
            cluster: The cluster.
            larger: Whether windows may have twice as many tokens, see `large_are_cheap`.
            token_multiple: Multiple that rows are filled up to.
            preferences: Numbers of preference pairs; None if no sample is one.
        """
        inputs, targets = lengths
        both = inputs + targets
        n_documents, pairs = preferences or (np.ones_like(inputs), inputs**2)
        summed = [both, n_documents, inputs, pairs]
        if targets.any():
            summed += [targets, targets * both]
        tokens, *sums = (np.concatenate([[0], np.cumsum(each)])[begin] for each in summed)
        n_windows = WINDOWS_PER_STAGE * cluster.n_plans / (2 if larger else 1)
        most = max(both.sum() / n_windows, 2 * both.max(), token_multiple)
        most_tokens = float(most) if are_limited(begin, cluster) else np.inf
        return cls(begin, tokens, tuple(sums), most_tokens, known, token_multiple)

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
        """Equal rows with as many tokens and pairs, see `packed_shapes`."""
        end = first + size
        of_windows = [sums[end] - sums[first] for sums in self.sums]
        _, inputs, _, *of_targets = of_windows
        row_tokens, sums = padded(inputs, self.token_multiple), Sums(*of_windows)
        if not of_targets:
            return packed_shapes(row_tokens, sums, self.known)
        target_tokens = padded(of_targets[0], self.token_multiple)
        return packed_pair_shapes(row_tokens, target_tokens, sums, self.known)

    def shapes_of_rows(self, first: IntArray, most: IntArray) -> ShapesOfRows:
        """A shape per window, as hardly any two are alike."""
        before = np.repeat(np.cumsum(most) - most, most)
        size = np.arange(1, len(before) + 1) - before
        shapes = self.shapes(np.repeat(first, most), size)
        return ShapesOfRows(np.arange(len(size), dtype=np.int32), shapes)
