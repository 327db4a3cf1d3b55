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
from dynapipe_hpc.planner.cost.cost_model import CostModel, FloatArray, IntArray, StageCosts


@dataclass(frozen=True, slots=True, eq=False)
class Candidates:
    """What every padded micro-batch of neighbouring samples costs.

    Samples come longest first, so the first of a micro-batch sets its row length, and samples
    of one row length share a row of the tables. Entry (m, l, k) is of a micro-batch of k + 1
    samples of which the first has row length l, in mode m of the cost model's, and infinite
    where that may not be used.

    Attributes:
        length_of_sample: Shape (n_samples,), the row of each sample in the tables.
        known: Shape (n_modes, n_lengths, max_rows), which entries may be used.
        costs: Of the known entries, in their order.
    """

    length_of_sample: npt.NDArray[np.int32]
    known: BoolArray
    costs: StageCosts

    @property
    def work_ms(self) -> FloatArray:
        """Shape (n_modes, n_lengths, max_rows), forward and backward on the slowest stage."""
        return self.table(bottleneck_ms(self.costs))

    @property
    def fill_ms(self) -> FloatArray:
        """Shape (n_modes, n_lengths, max_rows), forward and backward on all other stages."""
        return self.table(fill_ms(self.costs))

    def table(self, entries: FloatArray) -> FloatArray:
        """Entries of the known, infinite elsewhere, shape (n_modes, n_lengths, max_rows, ...)."""
        table = np.full(self.known.shape + entries.shape[1:], np.inf)
        table[self.known] = entries
        return table

    def of_at_most(self, max_rows: int) -> Self:
        """Those of at most `max_rows` samples."""
        few = self.known[..., :max_rows]
        kept = np.flatnonzero(np.nonzero(self.known)[-1] < max_rows)
        return type(self)(self.length_of_sample, np.ascontiguousarray(few), self.costs.take(kept))


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
        _stacked([known for known, _ in of_mode]),
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
        one = np.ones_like(self.row_tokens)
        modes = self.cost.recompute_modes
        alone = [self.cost.stage_costs(one, self.row_tokens, mode) for mode in modes]
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
        return self.cost.stage_costs(n_rows, self.row_tokens[length], recompute), n_rows

    def _allowed(self, costs: StageCosts, n_rows: IntArray) -> BoolArray:
        keeps_its_share = costs.stored_bytes <= self.memory_share * self.room_bytes
        may_be_kept = keeps_its_share.all(axis=1) | (n_rows == 1)
        return np.asarray(fits(costs, self.room_bytes) & may_be_kept)
