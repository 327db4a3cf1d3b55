"""The micro-batches that a split may choose from."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Self

import numpy as np
import numpy.typing as npt

from dynapipe_hpc.data.microbatch import Recompute
from dynapipe_hpc.data.sample import Sample
from dynapipe_hpc.plan.cluster import Cluster
from dynapipe_hpc.planner.batch.memory import (
    BoolArray,
    activation_room_bytes,
    does_not_fit,
    fits,
)
from dynapipe_hpc.planner.batch.objective import bottleneck_ms, fill_ms
from dynapipe_hpc.planner.batch.row_length import padded
from dynapipe_hpc.planner.cost.cost_model import (
    CostModel,
    FloatArray,
    IntArray,
    Shapes,
    StageCosts,
)


@dataclass(frozen=True, slots=True, eq=False)
class Candidates:
    """What every padded micro-batch of neighbouring samples costs.

    Samples come longest first, so the first of a micro-batch sets its row length, and samples
    of one row length share a row of the tables. Entry (m, l, k) is of a micro-batch of k + 1
    samples of which the first is of row l, in mode m of the cost model's.

    Attributes:
        row_of_sample: Shape (n_samples,), the row of each sample in the tables.
        cells: Shape (n_modes, n_rows, max_samples), which of `costs` a micro-batch has; -1 where
            it may not be used.
        costs: Of the micro-batches that may be used, in the order of `cells`.
    """

    row_of_sample: npt.NDArray[np.int32]
    cells: npt.NDArray[np.int32]
    costs: StageCosts

    @property
    def work_ms(self) -> FloatArray:
        """Shape (n_modes, n_rows, max_samples), forward and backward on the slowest stage."""
        return self.table(bottleneck_ms(self.costs))

    @property
    def fill_ms(self) -> FloatArray:
        """Shape (n_modes, n_rows, max_samples), forward and backward on all other stages."""
        return self.table(fill_ms(self.costs))

    def table(self, entries: FloatArray) -> FloatArray:
        """Of every cell its entry, infinite where there is none; in the shape of `cells`."""
        table = np.full(self.cells.shape, np.inf)
        table[self.cells >= 0] = entries
        return table

    def of_at_most(self, max_samples: int) -> Self:
        """Those of at most `max_samples` samples."""
        known = self.cells[..., :max_samples] >= 0
        kept = self.cells[..., :max_samples][known].astype(np.int64)
        return type(self)(self.row_of_sample, numbered(known), self.costs.take(kept))


def numbered(known: BoolArray) -> npt.NDArray[np.int32]:
    """The true entries by number, the others -1."""
    return np.where(known, np.cumsum(known).reshape(known.shape) - 1, -1).astype(np.int32)


def candidates(
    samples: Sequence[Sample], cost: CostModel, cluster: Cluster, memory_share: float
) -> Candidates:
    """Looks up what every micro-batch of neighbouring samples costs.

    Args:
        samples: Longest first, at least one.
        cost: Predicts time and memory.
        cluster: Whose memory limits a micro-batch.
        memory_share: Of the memory that the model leaves on a stage, what a micro-batch of
            more than one sample may keep; in (0, 1].

    Raises:
        DoesNotFitError: A sample alone needs more memory than a stage has.
        NotMeasuredError: The cost model does not know what a sample alone costs.
    """
    row_tokens = padded(np.array([sample.tokens for sample in samples], dtype=np.int64))
    if np.any(np.diff(row_tokens) > 0):
        raise ValueError("samples must come longest first, as order_samples returns them")
    starts_length = np.diff(row_tokens, prepend=0) != 0
    first = np.flatnonzero(starts_length)
    lookup = _Lookup(row_tokens[first], cost, activation_room_bytes(cost, cluster), memory_share)
    lookup.check_samples(samples, first, cluster)
    of_mode = [lookup.known(len(samples) - first, mode) for mode in cost.recompute_modes]
    return Candidates(
        np.cumsum(starts_length, dtype=np.int32) - 1,
        numbered(_stacked([known for known, _ in of_mode])),
        StageCosts.joined([costs for _, costs in of_mode]),
    )


def _stacked(tables: Sequence[BoolArray]) -> BoolArray:
    """Tables of any width in one, false where they end."""
    width = max(table.shape[1] for table in tables)
    return np.stack([np.pad(table, ((0, 0), (0, width - table.shape[1]))) for table in tables])


@dataclass(frozen=True, slots=True, eq=False)
class _Lookup:
    """Finds what is allowed and what it costs, for the distinct row lengths."""

    row_tokens: IntArray
    cost: CostModel
    room_bytes: FloatArray
    memory_share: float

    def check_samples(self, samples: Sequence[Sample], first: IntArray, cluster: Cluster) -> None:
        """Raises for the longest sample that cannot run alone; `first` has each length."""
        shapes = Shapes.of_rows(np.ones_like(self.row_tokens), self.row_tokens)
        alone = [self.cost.stage_costs(shapes, mode) for mode in self.cost.recompute_modes]
        fitting = np.any([fits(costs, self.room_bytes) for costs in alone], axis=0)
        misfits = np.flatnonzero(~fitting)
        if misfits.size:
            sample = samples[first[misfits[0]]]
            raise does_not_fit(
                f"sample {sample.sample_id} ({sample.input_tokens} input + "
                f"{sample.target_tokens} target tokens) on its own",
                alone[-1].take(misfits[:1]),  # the mode that keeps least
                self.cost,
                cluster,
                "cut long samples with data.max_tokens",
            )

    def known(self, max_rows: IntArray, recompute: Recompute) -> tuple[BoolArray, StageCosts]:
        """What may be used in a mode and what that costs, up to `max_rows` rows of each length.

        More rows never need less memory, but for noise, so the most rows that fit lie between
        two powers of two; only up to the larger one is looked up row by row.
        """
        doubling = 1 << np.arange(int(max_rows.max()).bit_length())
        tried = doubling <= max_rows[:, None]
        is_fitting = np.zeros(tried.shape, dtype=np.bool_)
        is_fitting[tried] = self._allowed(*self._costs(tried, doubling, recompute))
        bound = np.minimum(2 * (is_fitting * doubling).max(axis=1) - 1, max_rows)

        rows = np.arange(1, bound.max() + 1)
        wanted = rows <= bound[:, None]
        costs, n_rows = self._costs(wanted, rows, recompute)
        allowed = self._allowed(costs, n_rows)
        wanted[wanted] = allowed
        return wanted, costs.take(np.flatnonzero(allowed))

    def _costs(
        self, wanted: BoolArray, rows: IntArray, recompute: Recompute
    ) -> tuple[StageCosts, IntArray]:
        """Costs and row counts of the wanted entries of a table of shape (lengths, rows)."""
        length, column = np.nonzero(wanted)
        n_rows = rows[column]
        shapes = Shapes.of_rows(n_rows, self.row_tokens[length])
        return self.cost.stage_costs(shapes, recompute), n_rows

    def _allowed(self, costs: StageCosts, n_rows: IntArray) -> BoolArray:
        keeps_its_share = costs.stored_bytes <= self.memory_share * self.room_bytes
        may_be_kept = keeps_its_share.all(axis=1) | (n_rows == 1)
        return np.asarray(fits(costs, self.room_bytes) & may_be_kept)
