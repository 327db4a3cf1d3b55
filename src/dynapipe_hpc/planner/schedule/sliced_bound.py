"""Lower bound on the time of an iteration in which samples may run as slices."""

from collections.abc import Iterator, Sequence
from dataclasses import replace

import numpy as np

from dynapipe_hpc.data.microbatch import Layout, Recompute
from dynapipe_hpc.data.sample import Sample
from dynapipe_hpc.plan.cluster import Cluster
from dynapipe_hpc.planner.batch.memory import activation_room_bytes, fits
from dynapipe_hpc.planner.cost.cost_model import (
    Cost,
    CostModel,
    FloatArray,
    IntArray,
    StageCosts,
)
from dynapipe_hpc.planner.schedule.packed_bound import stage_bounds
from dynapipe_hpc.planner.schedule.path_times import PathTimes
from dynapipe_hpc.planner.schedule.row_cells import (
    LENGTH_STEP,
    CellCosts,
    RowCells,
    shapes_of,
)
from dynapipe_hpc.planner.schedule.stage_bound import area_of
from dynapipe_hpc.planner.schedule.update import extra_reduce_ms

HARDLY_ANY = 2.0**-10
"""Tokens before a slice that is not the first one."""
N_WINDOW_STEPS = 16
"""Steps within a window, at which times of slices are looked up."""


def sliced_bound_ms(
    samples: Sequence[Sample], cost: CostModel, cluster: Cluster, *, may_split: bool
) -> float:
    """Lower bound on the makespan of any plan of padded and packed rows and slices of samples.

    The makespan includes `extra_reduce_ms`.

    It is that of `packed_bound_ms` without the round trip of the longest sample, whose slices need
    not wait for each other. It is the larger of two: the work of all samples, shared by the
    replicas, and the work of the longest sample on one replica.

    A slice of T tokens with a tokens before it has T (T + 2 a) pairs. The tokens and the pairs of
    the slices of a sample add up to those of the sample. So `RowCells.least` holds for slices of
    any size if there is a cell for every T, once without tokens before it and once with as many as
    the longest sample has, or more: between the two, costs are never below a straight line.

    Args:
        samples: Samples of one iteration, at least one, none of which is a preference pair.
        cost: Cost model of a decoder-only model, in which more or longer rows never cost less. The
            time of a slice is a convex function of the tokens before it, if these are at least as
            many as a window holds; its memory does not depend on them, and the tokens that fill its
            row take at least the time of their pairs.
        cluster: The cluster, with number of replicas, memory limit and link.
        may_split: Whether backward passes may be split.
    """
    longest = float(max(sample.tokens for sample in samples))
    rows = RowCells.from_samples(samples, cost, cluster, may_split=may_split)
    cells = _with_slices(rows, longest, cost, cluster, may_split=may_split)
    of_longest = replace(cells, tokens=longest, pairs=longest**2)
    reduce_ms, one_replica = extra_reduce_ms(cost), cluster.model_copy(update={"n_replicas": 1})
    tightest = [
        max(
            stage_bounds(of_samples, of_cluster, reduce_ms, may_split=may_split),
            key=lambda stage: stage.bound_ms(1.0, 1.0),
        )
        for of_samples, of_cluster in ((cells, cluster), (of_longest, one_replica))
    ]
    return max(stage.best_bound_ms() for stage in tightest)


def _with_slices(
    rows: RowCells, longest: float, cost: CostModel, cluster: Cluster, *, may_split: bool
) -> RowCells:
    """The cells of rows and those of slices, each of which has a length of its own."""
    n_steps = int(np.ceil(np.log(longest) / np.log(LENGTH_STEP))) + 1
    tokens: FloatArray = LENGTH_STEP ** np.arange(n_steps + 1, dtype=np.float64)
    n_rows, length, costs = [rows.n_rows], [rows.length], [rows.costs]
    for before, of_cells, fitting in _slice_costs(
        tokens[:-1], longest, cost, cluster, may_split=may_split
    ):
        most_tokens = tokens[1:][fitting]
        most_length = most_tokens + 2 * before
        n_rows.append(most_tokens / most_length)
        length.append(most_length)
        costs.append(of_cells)
    begin = len(rows.n_rows) + np.arange(sum(map(len, length)) - len(rows.length))
    return replace(
        rows,
        n_rows=np.concatenate(n_rows),
        length=np.concatenate(length),
        begin=np.concatenate([rows.begin, begin]),
        costs=CellCosts(*map(np.concatenate, zip(*costs, strict=True))),
    )


def _slice_costs(
    tokens: FloatArray, longest: float, cost: CostModel, cluster: Cluster, *, may_split: bool
) -> Iterator[tuple[float, CellCosts, IntArray]]:
    """Costs of slices that fit, behind no tokens and behind many.

    Many are as many as the longest sample has, but at least two windows. Times are on a straight
    line, see `_line_ms`. Heads, tails and memory are those behind no tokens.

    Yields:
        The tokens before the slices, costs of those that fit, and their places in `tokens`.
    """
    room_bytes, reduce_ms = activation_room_bytes(cost, cluster), extra_reduce_ms(cost)
    packed, has_windows = cost.of_layout(Layout.PACKED), np.isfinite(cost.window)
    many = max(longest, 2 * cost.window) if has_windows else longest
    shares = np.linspace(0, 1, N_WINDOW_STEPS + 1) ** 2 if has_windows else np.zeros(1)
    steps = shares * cost.window if has_windows else shares
    # Behind no tokens at all, a slice counts as a row, whose masks backward keeps, and costs more.
    steps[0] = HARDLY_ANY
    for recompute in cost.recompute_modes:
        costs = [
            _costs_behind(before, tokens, packed, recompute)
            for before in (*steps.tolist(), many, 2 * many)
        ]
        fitting = np.flatnonzero(fits(costs[0], room_bytes))
        times = [
            PathTimes.from_costs(
                each.take(fitting), cluster.link, may_split=may_split, reduce_ms=reduce_ms
            )
            for each in costs
        ]
        behind_none = times[0]
        # W may come in any order, so that only passes up to B lie within those of earlier slices.
        until_w = costs[0].stored_bytes[fitting, 0] * behind_none.weight_ms[:, 0]
        area_ms = (area_of(costs[0].take(fitting), behind_none) - until_w) / room_bytes[0]
        work_ms = _line_ms([each.work_ms for each in times], steps / many)
        through_ms = _line_ms([each.through_ms for each in times], steps / many)
        for before, work, through in zip((0.0, many), work_ms, through_ms, strict=True):
            yield (
                before,
                CellCosts(work, through, behind_none.head_ms, behind_none.tail_ms, area_ms),
                fitting,
            )


def _line_ms(times_ms: Sequence[FloatArray], shares: FloatArray) -> tuple[FloatArray, FloatArray]:
    """Ends of straight lines below the times of slices, behind no tokens and behind many.

    Beyond a window times are convex, so they are not below the line through those behind many
    tokens and twice as many. Within it they only grow: from one step to the next they are not
    below a line that is at the next step where they are at this one.

    Args:
        times_ms: Times behind tokens at every step, behind many and behind twice as many, shape
            (n_cells, n_stages) each.
        shares: Tokens at every step in terms of many, the last those of a window.
    """
    *within, many_ms, twice_ms = times_ms
    later_ms = twice_ms - many_ms
    none_ms = many_ms - later_ms
    steps = [(step_ms, share) for step_ms, share in zip(within, shares[1:].tolist(), strict=False)]
    for step_ms, share in steps:
        none_ms = np.minimum(none_ms, (step_ms - share * many_ms) / (1 - share))
    if not steps or (none_ms >= 0).all():
        return none_ms, many_ms
    # A line that begins at nothing, and is as high as steps and the line beyond the window allow.
    share = float(shares[-1])
    most_ms = np.minimum(many_ms, np.maximum(many_ms - (1 - share) * later_ms, 0) / share)
    for step_ms, share in steps:
        most_ms = np.minimum(most_ms, step_ms / share)
    return np.maximum(none_ms, 0), np.where(none_ms < 0, most_ms, many_ms)


def _costs_behind(
    before: float, tokens: FloatArray, cost: CostModel, recompute: Recompute
) -> StageCosts:
    """Costs of slices behind so many tokens, with the least memory that a slice adds to a stage.

    While a slice is in memory, those before it are, and they keep what is counted off the last one
    (see `with_slice_memory`). Its keys and values are kept for longer than itself.
    """
    length = tokens + 2 * before
    costs = cost.stage_costs(shapes_of(tokens / length, length), recompute)
    table, memory = costs.table.copy(), cost.slice_memory
    if recompute is Recompute.NONE:
        table[..., Cost.STORED_BYTES] -= tokens[:, None] * memory.spared
    table[..., cost.cache_cost] += tokens[:, None] * memory.kept
    return StageCosts(table)
