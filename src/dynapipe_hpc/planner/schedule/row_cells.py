"""Micro-batches of any layout as equal rows, in cells of similar numbers and lengths of rows."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise, product
from typing import NamedTuple, Self

import numpy as np

from dynapipe_hpc.data.microbatch import Layout
from dynapipe_hpc.data.sample import Sample
from dynapipe_hpc.plan.cluster import Cluster
from dynapipe_hpc.planner.batch.memory import BoolArray, activation_room_bytes, fits
from dynapipe_hpc.planner.batch.row_length import padded as rounded_up
from dynapipe_hpc.planner.batch.row_length import tokens_of
from dynapipe_hpc.planner.cost.cost_model import (
    CostModel,
    FloatArray,
    IntArray,
    KnownRows,
    Shapes,
    StageCosts,
)
from dynapipe_hpc.planner.schedule.path_times import PathTimes
from dynapipe_hpc.planner.schedule.stage_bound import area_of, greatest
from dynapipe_hpc.planner.schedule.update import extra_reduce_ms

LENGTH_STEP = 1.002
"""Ratio of the neighbouring lengths of rows that are looked at."""
STEPS_PER_DOUBLING = 4
"""Numbers of rows that are looked at from any to twice as many."""


class CellCosts(NamedTuple):
    """Least costs of the micro-batches of cells. Arrays of shape (n_cells, n_stages) or (n_cells,).

    Attributes:
        work_ms: Work on every stage.
        through_ms: Work without W.
        head_ms: Time until a micro-batch can have reached the stage.
        tail_ms: Time from the end of its B there to the end of what follows, see `PathTimes`.
        area_ms: Bytes kept on the first stage x time, over its memory.
    """

    work_ms: FloatArray
    through_ms: FloatArray
    head_ms: FloatArray
    tail_ms: FloatArray
    area_ms: FloatArray

    @classmethod
    def from_shapes(
        cls,
        few: StageCosts,
        many: StageCosts,
        ratio: FloatArray,
        cluster: Cluster,
        *,
        split: bool,
        reduce_ms: FloatArray,
    ) -> Self:
        """Costs of cells between fewer and more rows of the same length.

        The time of a row is a straight line over the number of rows or falls with it, see
        `KnownRows`. So it is least at one of the two; and all else never falls.

        Args:
            few: Costs of the micro-batches with the fewest rows.
            many: Costs of those with the most.
            ratio: Fewest rows over most, shape (n_cells,).
            cluster: The cluster.
            split: Whether backward passes may be split.
            reduce_ms: Reductions to count, see `PathTimes`.
        """
        at_few, at_many = (
            PathTimes.from_costs(c, cluster.link, may_split=split, reduce_ms=reduce_ms)
            for c in (few, many)
        )
        forward_ms, gradient_ms, weight_ms, transfer_ms = (
            np.minimum(getattr(at_few, name), ratio[:, None] * getattr(at_many, name))
            for name in ("forward_ms", "gradient_ms", "weight_ms", "transfer_ms")
        )
        least = PathTimes(forward_ms, gradient_ms, weight_ms, transfer_ms, reduce_ms)
        return cls(
            least.work_ms, least.through_ms, at_few.head_ms, at_few.tail_ms, area_of(few, least)
        )


@dataclass(frozen=True, slots=True, eq=False)
class RowCells:
    """All micro-batches that a partition may have, in cells.

    A micro-batch costs as much as r rows of l tokens, see `Shapes`. A cell holds those of a layout
    and mode whose r and l are each between two numbers. `sliced_bound` adds cells of slices.

    Attributes:
        tokens: Tokens of all samples.
        pairs: Sum of their pairs of tokens: squared lengths, or see `Sample.attention_pairs`.
        n_rows: Fewest rows, shape (n_cells,).
        length: Lengths that rows of some cells do not exceed, shape (n_lengths,).
        begin: First of the cells with rows of each length, which are neighbours, ascending, shape
            (n_lengths,).
        costs: Least costs of every cell; the area as a fraction of the first stage's memory.
    """

    tokens: float
    pairs: float
    n_rows: FloatArray
    length: FloatArray
    begin: IntArray
    costs: CellCosts

    @classmethod
    def from_samples(
        cls, samples: Sequence[Sample], cost: CostModel, cluster: Cluster, *, may_split: bool
    ) -> Self:
        """The cells in which something fits.

        Args:
            samples: The samples.
            cost: Cost model of a decoder-only model, in which more or longer rows never cost less.
            cluster: The cluster, with memory limit and link.
            may_split: Whether backward passes may be split.
        """
        room_bytes, reduce_ms = activation_room_bytes(cost, cluster), extra_reduce_ms(cost)
        tokens = tokens_of(samples, "tokens")
        length = lengths(samples, cost.known_rows)
        n_rows = _numbers_of_rows(cost.known_rows, len(samples) + sum(s.is_pair for s in samples))
        size = (len(length) - 1, len(n_rows))
        rows_of_cells = np.tile(n_rows, size[0])
        shapes = shapes_of(rows_of_cells, np.repeat(length[:-1], size[1]))
        # More padded rows than hold all tokens have no more real ones, and cost no less.
        is_possible = shapes.n_rows * shapes.row_tokens <= rounded_up(tokens.sum())
        many = np.arange(np.prod(size))
        few = np.where(many % size[1] == 0, many, many - 1)
        places, parts = [], []
        for costs in costs_of_modes(shapes, cost):
            runs = np.flatnonzero((is_possible & fits(costs, room_bytes))[few])
            ratio = rows_of_cells[few[runs]] / rows_of_cells[runs]
            at_few, at_many = costs.take(few[runs]), costs.take(runs)
            places.append(runs)
            parts.append(
                CellCosts.from_shapes(
                    at_few, at_many, ratio, cluster, split=may_split, reduce_ms=reduce_ms
                )
            )
        place = np.concatenate(places)
        order = np.argsort(place, kind="stable")
        columns = (np.concatenate(column)[order] for column in zip(*parts, strict=True))
        joined = CellCosts(*columns)
        of_length, begin = np.unique(place[order] // size[1], return_index=True)
        return cls(
            float(tokens.sum()),
            float(tokens_of(samples, "attention_pairs").sum()),
            rows_of_cells[few[place[order]]],
            length[1:][of_length],
            begin,
            joined._replace(area_ms=joined.area_ms / room_bytes[0]),
        )

    @property
    def can_run(self) -> BoolArray:
        """True of all, shape (n_cells,)."""
        return np.ones(len(self.n_rows), np.bool_)

    @property
    def area_ms(self) -> FloatArray:
        """Bytes kept on the first stage x time, over its memory, shape (n_cells,)."""
        return self.costs.area_ms

    def least(self, entries: FloatArray) -> float:
        """Lower bound on the sum over any partition; minus infinity if some entry is negative.

        If b and c are such that for all r and l of every cell

            b l + c l^2 <= entry / r

        then a micro-batch has at least b T + c P, where T = r l and P = r l^2 are no less than the
        tokens and squared lengths of its samples; and all micro-batches have at least b and c times
        the sums of these over the samples. Any c gives a bound, with the largest b; the best c is
        searched for.

        Args:
            entries: Least of any micro-batch of each cell with the fewest rows, and
                in proportion of those with more, shape (n_cells,).
        """
        per_row = np.minimum.reduceat(entries / self.n_rows, self.begin)
        if per_row.min() < 0:
            return -np.inf
        per_token = per_row / self.length

        def of_pair(c: float) -> float:
            return self.tokens * float((per_token - c * self.length).min()) + self.pairs * c

        return greatest(of_pair, 0.0, float((per_token / self.length).min()))[1]


def costs_of_modes(shapes: Shapes, cost: CostModel) -> Iterator[StageCosts]:
    """Costs of micro-batches in every mode and layout, once if they are those of both layouts."""
    of_layouts = dict.fromkeys(map(cost.of_layout, (Layout.PADDED, Layout.PACKED)))
    for of_layout, recompute in product(of_layouts, cost.recompute_modes):
        yield of_layout.stage_costs(shapes, recompute)


def shapes_of(n_rows: FloatArray, row_tokens: FloatArray) -> Shapes:
    """Rows of a decoder-only model."""
    return Shapes.padded(n_rows, row_tokens, np.zeros_like(row_tokens))


def lengths(samples: Sequence[Sample], known: KnownRows) -> FloatArray:
    """Lengths of rows, ascending; each stands for all up to the next.

    A preference pair may cost as much as two rows of half its length.
    """
    tokens = tokens_of(samples, "tokens")
    shortest = min(sample.tokens / (1 + sample.is_pair) for sample in samples)
    longest = max(
        rounded_up(int(tokens.max())), rounded_up(tokens.sum()) / known.most, known.least_tokens
    )
    n_lengths = int(np.ceil(np.log(longest / shortest) / np.log(LENGTH_STEP))) + 1
    return np.asarray(shortest * LENGTH_STEP ** np.arange(n_lengths + 1))


def _numbers_of_rows(known: KnownRows, n_samples: int) -> FloatArray:
    """Numbers of rows where cells meet, ascending: those known, and some between."""
    corners = np.array(known.n_rows or 2 ** np.arange(n_samples.bit_length() + 1), np.float64)
    corners = corners[: np.searchsorted(corners, n_samples) + 1]
    between = [
        np.geomspace(low, high, STEPS_PER_DOUBLING * int(np.ceil(np.log2(high / low))), False)
        for low, high in pairwise(corners)
    ]
    return np.concatenate([*between, corners[-1:]])
