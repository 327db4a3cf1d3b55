"""Windows of one sample each, which runs as slices."""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from typing import NamedTuple, Self

import numpy as np

from dynapipe_hpc.data.microbatch import ExecutionMode, Layout, Recompute
from dynapipe_hpc.plan.cluster import Cluster
from dynapipe_hpc.planner.batch.memory import BoolArray, activation_room_bytes, fits
from dynapipe_hpc.planner.batch.microbatch_costs import with_slice_memory
from dynapipe_hpc.planner.batch.packed_shapes import sliced_shapes
from dynapipe_hpc.planner.batch.row_length import padded
from dynapipe_hpc.planner.batch.slice_rule import Cut, SliceRule
from dynapipe_hpc.planner.batch.window_table import SliceCells, WindowTable
from dynapipe_hpc.planner.cost.cost_model import (
    SHARED,
    Cost,
    CostModel,
    Counts,
    FloatArray,
    IntArray,
    Shapes,
    StageCosts,
)

KEPT_SHARES = (0.25, 0.5, 0.75)
"""Shares of a sample's slices that are not recomputed, while the rest are as far as possible. These
are its last slices: they keep the fewest bytes for the time that recomputing them would take."""


def with_slices(
    table: WindowTable, cost: CostModel, cluster: Cluster, rule: SliceRule
) -> WindowTable | None:
    """The table with added modes, in which the longest samples run as slices, and only there.

    `table`: Windows of samples, the longest first; packed rows must be among its layouts. Returns
    None if no sample is cut, one that does not fit uncut is not, or a cut one cannot run as slices.
    """
    if not any(mode.layout is Layout.PACKED for mode in table.modes):
        return None
    runs = table.runs_alone[:, table.row_of_sample].any(axis=0)
    n_misfits = int(np.append(runs, True).argmax())
    cuts = rule.cuts(table.samples, cost, cluster, n_misfits)
    # A bundle of several samples holds short ones.
    alone = np.diff(table.begin)[: len(cuts)] == 1
    cuts = cuts[: len(alone) if alone.all() else int(alone.argmin())]
    if len(cuts) < max(1, n_misfits):
        return None
    slices = _Slices.from_cuts(cuts, cost, rule.token_multiple)
    usable = slices.are_new & fits(slices.together, activation_room_bytes(cost, cluster))
    runs_sliced = np.zeros(len(cuts), np.bool_)
    runs_sliced[slices.first[usable]] = True
    return _joined(table, slices, usable, rule.token_multiple) if runs_sliced.all() else None


class _Slices(NamedTuple):
    """Cuts of the longest samples in every mode of recomputation, and costs of their slices.

    Samples may be recomputed in part, too, see `KEPT_SHARES`.
    """

    first: IntArray
    cuts: Sequence[Cut]
    modes: Sequence[ExecutionMode]
    begins: IntArray
    later: Counts
    shapes: Shapes
    costs: StageCosts
    together: StageCosts

    @classmethod
    def from_cuts(cls, cuts: Sequence[Sequence[Cut]], cost: CostModel, token_multiple: int) -> Self:
        """Slices whose costs are looked up."""
        every = [cut for of_sample in cuts for cut in of_sample]
        first = np.repeat(np.arange(len(cuts)), [len(of_sample) for of_sample in cuts])
        n_slices = np.array([len(cut.slices) for cut in every])
        parts = np.array([part for cut in every for part in cut.slices])
        later = np.concatenate([np.arange(n)[::-1] for n in n_slices]).astype(np.uint32)
        row_tokens = padded(parts[:, 1] - parts[:, 0], token_multiple)
        shapes = sliced_shapes(row_tokens, parts[:, :2], 0, cost.known_rows)
        packed = cost.of_layout(Layout.PACKED)
        of_recompute = {
            recompute: packed.stage_costs(shapes, recompute).of_kinds
            for recompute in cost.recompute_modes
        }
        tables: list[FloatArray] = []
        modes: list[ExecutionMode] = []
        for recompute, kept_share in _recomputations(cost.recompute_modes):
            n_kept = (kept_share * n_slices).astype(np.int64)
            is_kept = later < n_kept.repeat(n_slices)
            table = of_recompute[recompute]
            if is_kept.any():
                table = np.where(is_kept[:, None, None], of_recompute[Recompute.NONE], table)
            keeps_all = is_kept | (recompute is Recompute.NONE)
            tables.append(
                with_slice_memory(
                    table,
                    parts,
                    later,
                    cost.slice_memory.of_kinds(cost.kind_of_stage),
                    cache_cost=cost.cache_cost,
                    keeps_all=keeps_all,
                )
            )
            modes += [
                ExecutionMode(Layout.PACKED, recompute, *numbers)
                for numbers in zip(n_slices.tolist(), n_kept.tolist(), strict=True)
            ]
        table, n_tables = np.concatenate(tables), len(tables)
        begins = np.concatenate([[0], np.cumsum(np.tile(n_slices, n_tables))])
        together = np.add.reduceat(table, begins[:-1])
        for highest in (*SHARED, Cost.BOUNDARY_BYTES):
            together[..., highest] = np.maximum.reduceat(table[..., highest], begins[:-1])
        return cls(
            np.tile(first, n_tables),
            every * n_tables,
            modes,
            begins,
            np.tile(later, n_tables),
            shapes.take(np.tile(np.arange(len(parts)), n_tables)),
            StageCosts(table, cost.kind_of_stage),
            StageCosts(together, cost.kind_of_stage),
        )

    @property
    def are_new(self) -> BoolArray:
        """Whether a cut differs from all before: two shares of few slices may round to one number.

        Shape (n_cuts,).
        """
        places: dict[tuple[int, ExecutionMode], int] = {}
        for place, cut in enumerate(zip(self.first.tolist(), self.modes, strict=True)):
            places.setdefault(cut, place)
        are_new = np.zeros(len(self.modes), np.bool_)
        are_new[[*places.values()]] = True
        return are_new


def _recomputations(modes: Sequence[Recompute]) -> Iterator[tuple[Recompute, float]]:
    yield from ((mode, 0.0) for mode in modes)
    if len(modes) > 1 and modes[0] is Recompute.NONE:
        yield from ((modes[-1], share) for share in KEPT_SHARES)


def _joined(
    table: WindowTable, slices: _Slices, usable: BoolArray, token_multiple: int
) -> WindowTable:
    n_costs, n_cells, n_rows = table.costs.n_microbatches, len(table.cells), table.spans.shape[1]
    row_of_cut, modes = table.row_of_sample[slices.first], sorted(set(slices.modes))
    mode_of_cut = np.array([modes.index(mode) for mode in slices.modes])
    spans = table.spans.copy()
    spans[:, row_of_cut, 1] = spans[:, row_of_cut, 0]
    slice_spans = np.full((len(modes), n_rows, 2), n_cells)
    cells = n_cells + np.arange(usable.sum())
    slice_spans[mode_of_cut[usable], row_of_cut[usable]] = np.stack([cells, cells + 1], axis=1)
    # Costs of cuts come first, then costs of slices.
    begins, n_whole = slices.begins[:-1], n_costs + len(slices.cuts)
    places = n_whole + np.arange(len(slices.later))
    first_slice = np.concatenate([np.arange(n_costs), places[begins], places])
    later = np.concatenate([np.zeros(n_whole, np.uint32), slices.later])
    numbers = (len(table.modes) + mode_of_cut).tolist()
    return replace(
        table,
        modes=(*table.modes, *modes),
        cells=np.concatenate([table.cells, (n_costs + np.flatnonzero(usable)).astype(np.int32)]),
        spans=np.concatenate([spans, slice_spans]),
        shapes=Shapes(*_chained([table.shapes, slices.shapes.take(begins), slices.shapes])),
        costs=StageCosts.joined([table.costs, slices.together, slices.costs]),
        sliced=SliceCells(
            first_slice.astype(np.int32),
            later,
            dict(zip(zip(slices.first.tolist(), numbers, strict=True), slices.cuts, strict=True)),
            token_multiple,
        ),
    )


def _chained(tables: Iterable[Shapes]) -> list[FloatArray]:
    return [np.concatenate(columns) for columns in zip(*tables, strict=True)]
