"""Lower bound on the time of an iteration of padded and packed micro-batches."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import product
from typing import Self

import numpy as np

from dynapipe_hpc.data.microbatch import Layout
from dynapipe_hpc.data.sample import Sample
from dynapipe_hpc.plan.cluster import Cluster
from dynapipe_hpc.planner.batch.memory import BoolArray, activation_room_bytes, fits
from dynapipe_hpc.planner.batch.row_length import padded, tokens_of
from dynapipe_hpc.planner.cost.cost_model import (
    CostModel,
    FloatArray,
    IntArray,
    Shapes,
    StageCosts,
)
from dynapipe_hpc.planner.schedule.stage_bound import greatest
from dynapipe_hpc.planner.schedule.ways import Ways

STEP = 1.002
"""Ratio of the neighbouring lengths of rows that are looked at."""


def packed_bound_ms(
    samples: Sequence[Sample], cost: CostModel, cluster: Cluster, *, may_split: bool
) -> float:
    """Lower bound on the makespan of any plan of padded and packed micro-batches.

    It holds for every partition of the samples, every layout and mode in which a micro-batch fits
    alone, every assignment to replicas and every schedule, and is the larger of two relaxations:

    - *Round trip of the longest sample*: its micro-batch goes through all stages and back.
    - *Work of a stage, with head and tail*: a stage begins when the shortest sample can have
      reached it, runs all work, and then, unless backward passes are split, the shortest sample
      goes back. Idle time and memory in flight are ignored.

    The work of a stage has no least partition that is known, so it is bounded from below by a sum
    over samples. A micro-batch costs as much as r rows of l tokens, see `Shapes`. If b and c are
    such that

        b l + c l^2 <= work(r, l) / r        for all r and l that fit,

    then its work is at least b T + c P, where T = r l and P = r l^2 are no less than the tokens and
    squared lengths of its samples; and all work is at least b and c times the sums of these over
    the samples. As work never falls with l, it suffices to compare the left side at one length with
    the right side at the one before. Any c gives a bound, with the largest b; the best c is
    searched for.

    Args:
        samples: Samples of one iteration, at least one.
        cost: Cost model of a decoder-only model, in which more or longer rows never cost less.
        cluster: The cluster, with number of replicas, memory limit and link.
        may_split: Whether backward passes may be split.
    """
    rows = _Rows.of(samples, cost, cluster, may_split=may_split)
    work_ms = np.array([_least_sum_ms(rows, stage) for stage in range(cluster.n_stages)])
    ends_ms = rows.head_ms if may_split else rows.head_ms + rows.tail_ms
    busiest_ms = float((work_ms / cluster.n_replicas + ends_ms).max())
    return max(busiest_ms, _round_trip_ms(rows, cost, cluster, may_split=may_split))


@dataclass(frozen=True, slots=True, eq=False)
class _Rows:
    """Least times of equal rows by their length, over all layouts and modes.

    Attributes:
        tokens: Length of every sample.
        length: Lengths of rows, ascending; each stands for all up to the next, shape (n + 1,).
        work_ms: Least work per row, shape (n, n_stages); infinite where nothing fits.
        head_ms: Least time until a micro-batch can have reached each stage, shape (n_stages,).
        tail_ms: Least time that it takes back from there, likewise.
    """

    tokens: IntArray
    length: FloatArray
    work_ms: FloatArray
    head_ms: FloatArray
    tail_ms: FloatArray

    @classmethod
    def of(
        cls, samples: Sequence[Sample], cost: CostModel, cluster: Cluster, *, may_split: bool
    ) -> Self:
        tokens, known = tokens_of(samples, "tokens"), cost.known_rows
        longest = max(
            padded(int(tokens.max())), padded(tokens.sum()) / known.most, known.least_tokens
        )
        n_lengths = int(np.ceil(np.log(longest / tokens.min()) / np.log(STEP))) + 1
        length = tokens.min() * STEP ** np.arange(n_lengths + 1)
        n_rows = np.array(known.n_rows or 2 ** np.arange(len(samples).bit_length() + 1))
        shape = (len(n_rows), n_lengths)
        shapes = _shapes(
            np.repeat(n_rows.astype(np.float64), n_lengths), np.tile(length[:-1], len(n_rows))
        )
        per_row, heads, tails = [], [], []
        for costs in _of_all_ways(shapes, cost):
            fit = fits(costs, activation_room_bytes(cost, cluster)).reshape(shape)
            per_row_ms = costs.work_ms.reshape(*shape, -1) / n_rows[:, None, None]
            may_run = _may_run(fit, n_rows, len(samples))
            per_row.append(np.where(may_run[..., None], per_row_ms, np.inf).min(axis=0))
            shortest = costs.take(np.flatnonzero(fit[0, :1]))
            ways = Ways.of(shortest, cluster.link, may_split=may_split)
            heads += list(ways.head_ms)
            tails += list(ways.tail_ms)
        head_ms, tail_ms = (np.min(of_modes, axis=0) for of_modes in (heads, tails))
        return cls(tokens, length, np.min(per_row, axis=0), head_ms, tail_ms)


def _may_run(fit: BoolArray, n_rows: IntArray, n_samples: int) -> BoolArray:
    """Whether some number of rows above the one before, up to each, can run."""
    before = np.concatenate([fit[:1], fit[:-1]])
    is_less = np.concatenate([[True], n_rows[:-1] < n_samples])
    return np.asarray(before & is_less[:, None])


def _least_sum_ms(rows: _Rows, stage: int) -> float:
    """Lower bound on the sum of the work of all micro-batches on a stage."""
    runs = np.isfinite(rows.work_ms[:, stage])
    length = rows.length[1:][runs]
    per_token_ms = rows.work_ms[runs, stage] / length
    n_tokens, n_pairs = float(rows.tokens.sum()), float((rows.tokens**2).sum())

    def of_pair_ms(c: float) -> float:
        return n_tokens * float((per_token_ms - c * length).min()) + n_pairs * c

    return greatest(of_pair_ms, 0.0, float((per_token_ms / length).min()))[1]


def _round_trip_ms(rows: _Rows, cost: CostModel, cluster: Cluster, *, may_split: bool) -> float:
    """Least round trip of a micro-batch with the longest sample, whose pairs it has at least."""
    n_rows = np.maximum(1.0, (rows.tokens.max() / rows.length[1:]) ** 2)
    least_ms = np.inf
    for costs in _of_all_ways(_shapes(n_rows, rows.length[:-1]), cost):
        fitting = costs.take(np.flatnonzero(fits(costs, activation_room_bytes(cost, cluster))))
        ways = Ways.of(fitting, cluster.link, may_split=may_split)
        least_ms = min(least_ms, float(ways.there_and_back_ms.min(initial=np.inf)))
    return least_ms


def _of_all_ways(shapes: Shapes, cost: CostModel) -> Iterator[StageCosts]:
    for layout, mode in product((Layout.PADDED, Layout.PACKED), cost.recompute_modes):
        yield cost.of_layout(layout).stage_costs(shapes, mode)


def _shapes(n_rows: FloatArray, row_tokens: FloatArray) -> Shapes:
    return Shapes(n_rows, row_tokens, np.zeros_like(row_tokens))
