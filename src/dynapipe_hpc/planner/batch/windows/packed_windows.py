"""Windows whose samples lie in one row, end to end."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Self

import numpy as np

from dynapipe_hpc.data.microbatch import Layout
from dynapipe_hpc.plan.cluster import Cluster
from dynapipe_hpc.planner.batch.memory import BoolArray
from dynapipe_hpc.planner.batch.objective import bottleneck_ms
from dynapipe_hpc.planner.batch.packed_shapes import Sums, packed_pair_shapes, packed_shapes
from dynapipe_hpc.planner.batch.row_length import (
    ROW_MULTIPLE,
    Preferences,
    RowLengths,
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


@dataclass(frozen=True, slots=True, eq=False)
class PackedWindows:
    """Windows of packed rows, see `LayoutWindows`: tokens and pairs of a window are sums.

    An encoder-decoder model has a row of inputs and one of targets.

    Unlike padding, sums never make large windows bad by themselves, but fewer than two per stage
    would leave stages idle. In a batch of many samples, windows of several therefore have no more
    tokens than such a share of a replica's, or than the two longest samples, or than the shortest
    row; and where windows twice as large are cheaper, than twice as many, and so on.

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
        cost: CostModel,
        cluster: Cluster,
        *,
        token_multiple: int = ROW_MULTIPLE,
        preferences: Preferences | None = None,
    ) -> Self:
        """Windows of bundles of samples that take the given positions in packed rows.

        Args:
            lengths: Positions that samples take.
            begin: Beginnings of bundles, and the end of the last.
            cost: Cost model of packed rows.
            cluster: The cluster.
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
        windows = cls(begin, tokens, tuple(sums), np.inf, cost.known_rows, token_multiple)
        if not are_limited(begin, cluster):
            return windows
        share = windows.cheapest_share(cost, cluster)
        most = max(share * both.sum(), 2 * both.max(), token_multiple)
        return replace(windows, most_tokens=float(most))

    def cheapest_share(self, cost: CostModel, cluster: Cluster) -> float:
        """Share of all tokens up to which windows are looked at.

        That of `WINDOWS_PER_STAGE`, or twice as much where such windows take less time per token,
        and so on: a fast GPU waits for launches. Of the modes of the cost model, the first counts.
        """
        most = WINDOWS_PER_STAGE * cluster.n_stages
        shares = 2.0 ** np.arange(most.bit_length() + 1) / (most * cluster.n_replicas)
        totals = (sums[-1] for sums in self.sums)
        shapes = self._shapes_of(
            [np.maximum(total * shares, 1).astype(np.int64) for total in totals]
        )
        each_ms = bottleneck_ms(cost.stage_costs(shapes, cost.recompute_modes[0])) / shares
        is_dear = np.append(~(each_ms[1:] < CHEAPER * each_ms[:-1]), True)
        return float(shares[is_dear.argmax()])

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
        return self._shapes_of([sums[end] - sums[first] for sums in self.sums])

    def _shapes_of(self, of_windows: Sequence[IntArray]) -> Shapes:
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
