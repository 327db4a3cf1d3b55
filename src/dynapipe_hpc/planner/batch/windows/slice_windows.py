"""Windows of one sample each that run as slices of it."""

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import NamedTuple

import numpy as np

from dynapipe_hpc.data.microbatch import ExecutionMode, Layout, PackedRow, Recompute
from dynapipe_hpc.plan.cluster import Cluster
from dynapipe_hpc.planner.batch.memory import activation_room_bytes, fits
from dynapipe_hpc.planner.batch.microbatch_costs import microbatch_costs
from dynapipe_hpc.planner.batch.slice_rule import Cut, SliceRule
from dynapipe_hpc.planner.batch.windows.layout_windows import Cells
from dynapipe_hpc.planner.batch.windows.window_lookup import Ratings
from dynapipe_hpc.planner.batch.windows.window_table import SliceCells, WindowTable
from dynapipe_hpc.planner.cost.cost_model import (
    SHARED,
    Cost,
    CostModel,
    Counts,
    FloatArray,
    Shapes,
    StageCosts,
)


def with_slices(
    table: WindowTable, cost: CostModel, cluster: Cluster, rule: SliceRule
) -> WindowTable | None:
    """The table with modes in which the longest samples run as slices, and only so.

    Args:
        table: Windows of samples, the longest first, in packed rows among others.
        cost: Cost model of micro-batches.
        cluster: The cluster.
        rule: Rule by which samples are cut.

    Returns:
        The windows; None if no sample is cut, or one that is cannot run so.
    """
    if not any(mode.layout is Layout.PACKED for mode in table.modes):
        return None
    runs = table.runs_alone[:, table.row_of_sample].any(axis=0)
    n_misfits = int(np.append(runs, True).argmax())
    cuts = rule.cuts(table.samples, cost, cluster, n_misfits)
    # A bundle of several samples holds short ones.
    alone = np.diff(table.begin)[: len(cuts)] == 1
    cuts = cuts[: len(alone) if alone.all() else int(alone.argmin())]
    if not cuts:
        return None
    n_slices = sorted({len(cut.slices) for of_sample in cuts for cut in of_sample})
    modes = tuple(
        ExecutionMode(Layout.PACKED, recompute, n)
        for recompute in cost.recompute_modes
        for n in n_slices
    )
    priced = {
        (first, ExecutionMode(Layout.PACKED, recompute, len(each.rows))): each
        for recompute in cost.recompute_modes
        for first, each in _priced(cuts, cost, recompute, rule.token_multiple)
    }
    room_bytes = activation_room_bytes(cost, cluster)
    usable = {key: each for key, each in priced.items() if fits(each.together, room_bytes).all()}
    if {first for first, _ in usable} != set(range(len(cuts))):
        return None
    return _joined(table, modes, usable, len(cuts))


class _Priced(NamedTuple):
    """Slices of a sample and their costs, one by one and added up."""

    rows: Sequence[PackedRow]
    costs: StageCosts
    together: StageCosts

    @classmethod
    def from_costs(cls, rows: Sequence[PackedRow], costs: StageCosts) -> "_Priced":
        """Slices of a sample whose costs are known."""
        table = costs.table
        together = table.sum(axis=0, keepdims=True)
        for cost in (*SHARED, Cost.BOUNDARY_BYTES):
            together[..., cost] = table[..., cost].max(axis=0)
        return cls(rows, costs, StageCosts(together))

    @property
    def table(self) -> FloatArray:
        """Costs of the sample, then of its slices, shape (1 + n_slices, n_stages, len(Cost))."""
        return np.concatenate([self.together.table, self.costs.table])

    @property
    def ratings(self) -> Ratings:
        """Ratings of the sample: its work, the fill of a slice; then of slices, never used."""
        work_ms, slice_ms = self.together.work_ms[0], self.costs.work_ms
        fill_ms = float((slice_ms.sum(axis=1) - slice_ms.max(axis=1)).max())
        n = len(self.rows)
        nothing = np.zeros(n)
        return Ratings(
            np.array([work_ms.max(), *nothing]),
            np.array([fill_ms, *nothing]),
            np.array([0.0, *nothing + np.inf]),
        )

    @property
    def shapes(self) -> Shapes:
        """Sizes of the rows, those of the first slice for the sample, too."""
        tokens = [self.rows[0].row_tokens, *(row.row_tokens for row in self.rows)]
        ones = np.ones(len(tokens))
        return Shapes.padded(ones, np.array(tokens, np.float64), np.zeros(len(tokens)))


def _priced(
    cuts: Sequence[Sequence[Cut]], cost: CostModel, recompute: Recompute, token_multiple: int
) -> Iterator[tuple[int, _Priced]]:
    """Every cut of every sample, by the number of the sample; all are looked up together."""
    each = [
        (first, cut.rows(recompute, token_multiple))
        for first, of_sample in enumerate(cuts)
        for cut in of_sample
    ]
    costs = microbatch_costs([row for _, rows in each for row in rows], cost)
    end = 0
    for first, rows in each:
        begin, end = end, end + len(rows)
        yield first, _Priced.from_costs(rows, costs.take(np.arange(begin, end)))


def _joined(
    table: WindowTable,
    modes: Sequence[ExecutionMode],
    priced: Mapping[tuple[int, ExecutionMode], _Priced],
    n_cut: int,
) -> WindowTable:
    """One table with the windows of another, less those of samples that are cut, and of slices."""
    n_costs, n_cells, n_rows = table.costs.n_microbatches, len(table.cells), table.spans.shape[1]
    row_of_cut = table.row_of_sample[:n_cut]
    spans = table.spans.copy()
    spans[:, row_of_cut, 1] = spans[:, row_of_cut, 0]
    slice_spans = np.full((len(modes), n_rows, 2), n_cells)
    cells: list[int] = []
    rows_of: dict[tuple[int, int], tuple[PackedRow, ...]] = {}
    for (first, mode), each in priced.items():
        index = modes.index(mode)
        slice_spans[index, row_of_cut[first]] = n_cells + len(cells), n_cells + len(cells) + 1
        cells.append(n_costs)
        rows_of[first, len(table.modes) + index] = tuple(each.rows)
        n_costs += 1 + len(each.rows)
    first_slice, later = _places(table.costs.n_microbatches, priced.values())
    costs = StageCosts(
        np.concatenate([table.costs.table, *(each.table for each in priced.values())])
    )
    return replace(
        table,
        modes=(*table.modes, *modes),
        cells=np.concatenate([table.cells, np.array(cells, np.int32)]),
        spans=np.concatenate([spans, slice_spans]),
        shapes=Shapes(*_chained([table.shapes, *(each.shapes for each in priced.values())])),
        costs=costs,
        ratings=Ratings(*_chained([table.ratings, *(each.ratings for each in priced.values())])),
        sliced=SliceCells(first_slice, later, rows_of),
        _known={},
    )


def _places(n_before: int, priced: Collection[_Priced]) -> tuple[Cells, Counts]:
    """The first slice of every micro-batch, or itself, and the number of slices behind it."""
    first, later = [np.arange(n_before)], [np.zeros(n_before)]
    for each in priced:
        n = len(each.rows)
        start = sum(map(len, first))
        first.append(np.array([start + 1, *range(start + 1, start + 1 + n)]))
        later.append(np.array([0, *range(n - 1, -1, -1)]))
    return np.concatenate(first).astype(np.int32), np.concatenate(later).astype(np.uint32)


def _chained(tables: Iterable[Shapes | Ratings]) -> list[FloatArray]:
    """Columns of several tables, one table after the other."""
    return [np.concatenate(columns) for columns in zip(*tables, strict=True)]
