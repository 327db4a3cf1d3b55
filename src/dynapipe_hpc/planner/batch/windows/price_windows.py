"""Look-up of the costs of every window of neighbouring samples."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Self

import numpy as np

from dynapipe_hpc.data.microbatch import MAX_FILL_TOKENS, ExecutionMode, Layout, Recompute
from dynapipe_hpc.data.sample import Sample
from dynapipe_hpc.plan.cluster import Cluster
from dynapipe_hpc.planner.batch.memory import (
    BoolArray,
    activation_bytes,
    activation_room_bytes,
    misfit_error,
)
from dynapipe_hpc.planner.batch.row_length import (
    ROW_MULTIPLE,
    RowLengths,
    document_lengths,
    padded,
    preferences_of,
    row_lengths,
)
from dynapipe_hpc.planner.batch.windows.bundles import bundles
from dynapipe_hpc.planner.batch.windows.layout_windows import LayoutWindows
from dynapipe_hpc.planner.batch.windows.packed_windows import (
    PackedWindows,
)
from dynapipe_hpc.planner.batch.windows.padded_windows import PaddedWindows
from dynapipe_hpc.planner.batch.windows.window_lookup import Extent, Rated, WindowLookup
from dynapipe_hpc.planner.batch.windows.window_table import WindowTable
from dynapipe_hpc.planner.cost.cost_model import CostModel, IntArray, StageCosts

PADDED_ONLY = (Layout.PADDED,)


def price_windows(
    samples: Sequence[Sample],
    cost: CostModel,
    cluster: Cluster,
    layouts: Sequence[Layout] = PADDED_ONLY,
    *,
    token_multiple: int = ROW_MULTIPLE,
    may_misfit: bool = False,
) -> WindowTable:
    """Costs of every micro-batch of neighbouring samples, looked up once for all uses.

    Args:
        samples: Samples in the order to be cut, at least one.
        cost: Cost model of micro-batches.
        cluster: The cluster, with its memory limit.
        layouts: Layouts of windows, padded or packed.
        token_multiple: Multiple that rows are padded to, itself one of 8.
        may_misfit: Whether there may be samples that cannot run whole.

    Raises:
        DoesNotFitError: A sample alone needs more memory than a stage has.
        NotMeasuredError: The cost model does not know what a sample alone costs.
    """
    alone = np.arange(len(samples) + 1)
    table = _priced(samples, alone, cost, cluster, layouts=layouts, token_multiple=token_multiple)
    if not may_misfit:
        check_samples(table, cost, cluster, token_multiple, may_slice=False)
    return table


def price_bundled_windows(
    samples: Sequence[Sample],
    cost: CostModel,
    cluster: Cluster,
    layouts: Sequence[Layout] = PADDED_ONLY,
    *,
    token_multiple: int = ROW_MULTIPLE,
    may_misfit: bool = False,
) -> WindowTable:
    """Looks up what every micro-batch of whole bundles costs, if the batch is large.

    Plans are made of these, see `bundles`. If memory is so scarce that some bundle cannot run where
    its samples could, samples are not bundled.
    """
    rows = _row_lengths(samples, cost, min(token_multiple, MAX_FILL_TOKENS))
    begin = bundles(rows, cluster.n_replicas, layouts)
    n_samples = np.diff(begin)
    if n_samples.max() > 1:
        tables = _priced(
            samples, begin, cost, cluster, layouts=layouts, token_multiple=token_multiple
        )
        runs = tables.runs_alone[:, tables.row_of_sample]
        may_all_run = runs[:, n_samples == 1].all(axis=1)
        if runs.any(axis=0).all() and runs[may_all_run].all():
            return tables
    return price_windows(
        samples, cost, cluster, layouts, token_multiple=token_multiple, may_misfit=may_misfit
    )


def _priced(
    samples: Sequence[Sample],
    begin: IntArray,
    cost: CostModel,
    cluster: Cluster,
    *,
    layouts: Sequence[Layout],
    token_multiple: int,
) -> WindowTable:
    of_layouts = (
        _windows(samples, begin, cost, cluster, layout=each, token_multiple=token_multiple)
        for each in layouts
    )
    return WindowTable.joined(
        [_of_layout(samples, windows, cost, cluster) for windows in of_layouts]
    )


def _windows(
    samples: Sequence[Sample],
    begin: IntArray,
    cost: CostModel,
    cluster: Cluster,
    *,
    layout: Layout,
    token_multiple: int,
) -> LayoutWindows:
    if layout is Layout.PADDED:
        return PaddedWindows.from_lengths(_row_lengths(samples, cost, token_multiple), begin)
    lengths = document_lengths(samples, cost.is_encoder_decoder)
    return PackedWindows.from_lengths(
        lengths,
        begin,
        cost.of_layout(Layout.PACKED),
        cluster,
        token_multiple=token_multiple,
        preferences=preferences_of(samples),
    )


def _of_layout(
    samples: Sequence[Sample], windows: LayoutWindows, cost: CostModel, cluster: Cluster
) -> WindowTable:
    cost = cost.of_layout(windows.layout)
    begins = windows.begin_rows()
    room_bytes = activation_room_bytes(cost, cluster)
    lookup = WindowLookup(windows, np.flatnonzero(begins), cost, room_bytes)
    extents = list(Doubling.from_lookup(lookup).extents())
    reach = np.max([extent.most for extent in extents], axis=0)
    begins = windows.begin_rows_within(begins, reach)
    if begins.sum() > len(lookup.first):
        lookup = replace(lookup, first=np.flatnonzero(begins))
        extents = list(Doubling.from_lookup(lookup).extents())
    cells, rated = lookup.rated_windows(extents)
    return WindowTable(
        samples,
        windows.begin,
        tuple(ExecutionMode(windows.layout, recompute) for recompute in cost.recompute_modes),
        np.cumsum(begins, dtype=np.int32) - 1,
        cells,
        _spans([extent.most for extent in extents]),
        *rated,
    )


def _spans(most: Sequence[IntArray]) -> IntArray:
    """Begin and end of rows of so many cells, which follow each other without gaps."""
    end = np.cumsum(most).reshape(len(most), -1)
    return np.stack([end - most, end], axis=2)


def check_samples(
    table: WindowTable, cost: CostModel, cluster: Cluster, token_multiple: int, *, may_slice: bool
) -> None:
    """Raises for the first sample that runs in no way, nor as slices if it may."""
    runs = table.runs_alone[:, table.row_of_sample].any(axis=0)
    misfits = np.flatnonzero(~runs)
    if misfits.size:
        sample = table.samples[misfits[0]]
        # That of the mode that keeps least.
        layout, recompute, *_ = table.modes[-1]
        windows = _windows(
            [sample], np.arange(2), cost, cluster, layout=layout, token_multiple=token_multiple
        )
        alone = windows.shapes(np.zeros(1, np.int64), np.ones(1, np.int64))
        raise misfit_error(
            f"sample {sample.sample_id} ({sample.describe()}) on its own",
            cost.of_layout(layout).stage_costs(alone, recompute),
            cost,
            cluster,
            way_out=_remedy(cost, has_tried_slices=may_slice and layout is Layout.PACKED),
        )


def _remedy(cost: CostModel, *, has_tried_slices: bool) -> str:
    if has_tried_slices or not cost.slice_memory.kept.any():
        return "cut long samples with data.max_tokens"
    return (
        'let long samples run as slices (planner.batch: layouts = ["packed"], slices = "auto"), '
        "or cut them with data.max_tokens"
    )


def _row_lengths(samples: Sequence[Sample], cost: CostModel, token_multiple: int) -> RowLengths:
    rows = row_lengths(samples, cost.is_encoder_decoder)
    return RowLengths(*(padded(side, token_multiple) for side in rows))


@dataclass(frozen=True, slots=True, eq=False)
class Doubling:
    """Windows of 1, 2, 4, ... samples, or of the most that are worth a look.

    Attributes:
        size: Number of samples of each window, shape (n_sizes, n_rows).
        rated: Ratings per mode of n_sizes * n_rows windows, those of one sample first.
    """

    lookup: WindowLookup
    size: IntArray
    rated: Sequence[Rated]

    @classmethod
    def from_lookup(cls, lookup: WindowLookup) -> Self:
        """Looks them up in every mode."""
        most = lookup.windows.most(lookup.first)
        sizes = 2 ** np.arange(int(most.max() - 1).bit_length() + 1)
        size = np.minimum(sizes[:, None], most)
        shapes = lookup.windows.shapes(np.tile(lookup.first, len(sizes)), size.ravel())
        rated = [lookup.rated(shapes, recompute) for recompute in lookup.cost.recompute_modes]
        return cls(lookup, size, rated)

    def extents(self) -> Iterator[Extent]:
        """The extents of the windows of every mode."""
        for rated, recompute in zip(self.rated, self.lookup.cost.recompute_modes, strict=True):
            yield self._extent(rated, recompute)

    def _extent(self, rated: Rated, recompute: Recompute) -> Extent:
        """The largest windows of a mode.

        Memory grows almost linearly with the number of samples, so the size at which it reaches the
        limit is estimated by linear interpolation. One window of that size is tried. If it does not
        fit, no larger window is used; if it does, windows up to the next of the sizes may be.
        """
        rows, n_sizes = np.arange(self.size.shape[1]), len(self.size)
        fits = np.isfinite(rated.ratings.memory_share).reshape(self.size.shape)
        n_fitting = np.where(fits.any(axis=0), n_sizes - np.argmax(fits[::-1], axis=0), 0)
        low, high = np.maximum(n_fitting - 1, 0), np.minimum(n_fitting, n_sizes - 1)
        largest, limit = self.size[low, rows], self.size[high, rows]
        needed = activation_bytes(StageCosts(rated.costs.of_kinds))
        needed = needed.reshape(*self.size.shape, -1)
        before, after = needed[low, rows], needed[high, rows]
        with np.errstate(divide="ignore", invalid="ignore"):
            share = np.min((self.lookup.room_of_kinds - before) / (after - before), axis=1)
        steps = np.where((share >= 0) & (share < 1), share, 1) * (limit - largest)
        tried = np.minimum(largest + steps.astype(np.int64) + 1, limit)
        most = np.where((n_fitting == n_sizes) | self._fits(tried, recompute), limit, tried - 1)
        return Extent(np.where(n_fitting, largest, 0), np.where(n_fitting, most, 0))

    def _fits(self, size: IntArray, recompute: Recompute) -> BoolArray:
        """Whether windows of some size fit, one per row."""
        rated = self.lookup.rated(self.lookup.windows.shapes(self.lookup.first, size), recompute)
        return np.isfinite(rated.ratings.memory_share)
