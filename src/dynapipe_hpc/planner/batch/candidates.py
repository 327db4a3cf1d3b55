"""The micro-batches that a split may choose from."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple, Self

import numpy as np
import numpy.typing as npt

from dynapipe_hpc import _kernels
from dynapipe_hpc.data.microbatch import MicroBatch, Recompute
from dynapipe_hpc.data.sample import Sample
from dynapipe_hpc.plan.cluster import Cluster
from dynapipe_hpc.planner.batch.bundles import bundles
from dynapipe_hpc.planner.batch.doubling import Doubling
from dynapipe_hpc.planner.batch.memory import BoolArray, activation_room_bytes, does_not_fit
from dynapipe_hpc.planner.batch.row_length import RowLengths, row_lengths
from dynapipe_hpc.planner.batch.window_costs import (
    Cells,
    Extent,
    Rated,
    Ratings,
    WindowLookup,
)
from dynapipe_hpc.planner.batch.window_rows import begin_rows, begin_rows_of_bundles
from dynapipe_hpc.planner.cost.cost_model import CostModel, FloatArray, IntArray, Shapes, StageCosts


class CheapestModes(NamedTuple):
    """Every window in the mode in which it works least, row after row, by number of samples.

    Attributes:
        begin: Shape (n_rows + 1,), where the windows of a row begin, and the end.
        work_ms: See `Ratings`; infinite where the window may not be used.
        fill_ms: Likewise.
        mode: Index into the modes; 0 where the window may not be used.
    """

    begin: IntArray
    work_ms: FloatArray
    fill_ms: FloatArray
    mode: Cells


@dataclass(frozen=True, slots=True, eq=False)
class Candidates:
    """What every padded micro-batch of neighbouring samples costs.

    Such a window is named by its first sample, its number of samples and its mode; in a large
    batch by its first bundle and its number of bundles, and what is said of samples is true of
    bundles. Samples
    whose windows are all alike, as those of one length in a sorted list, share a row of the
    tables. Rows have as many cells in a mode as its windows have samples at most: those of short
    samples that keep little are long, most others short. Windows of the same shape share their
    costs.

    Attributes:
        samples: In the order to be cut.
        begin: Ascending, where bundles begin in `samples`, and the end; each has one if the batch
            is not large.
        modes: Those of the cost model.
        row_of_sample: Shape (n_bundles,), the row of each in the tables.
        cells: Index into `costs` of windows of 1, 2, ... samples, for every mode and row; -1
            where they may not be used.
        spans: Shape (n_modes, n_rows, 2), where the cells of a mode and row begin and end.
        shapes: Of what was looked up, usable or not.
        costs: As many, see `shapes`.
        ratings: As many.
    """

    samples: Sequence[Sample]
    begin: IntArray
    modes: tuple[Recompute, ...]
    row_of_sample: Cells
    cells: Cells
    spans: IntArray
    shapes: Shapes
    costs: StageCosts
    ratings: Ratings

    def of_at_most(self, max_samples: int) -> Self:
        """Those of at most `max_samples` samples."""
        begin, end = np.moveaxis(self.spans, 2, 0)
        return replace(self, spans=np.stack([begin, np.minimum(end, begin + max_samples)], axis=2))

    def in_mode(self, mode: int) -> Self:
        """Those in one mode, by index."""
        return replace(self, modes=(self.modes[mode],), spans=self.spans[mode : mode + 1])

    @property
    def every_sample_runs(self) -> bool:
        """Whether every sample alone may be used in the first mode."""
        return bool(self.runs_alone[0].all())

    @property
    def runs_alone(self) -> BoolArray:
        """Whether every row's window of one sample may be used, shape (n_modes, n_rows)."""
        begin, end = np.moveaxis(self.spans, 2, 0)
        first_cell = self.cells[np.minimum(begin, len(self.cells) - 1)]
        return np.asarray((begin < end) & (first_cell >= 0))

    def cheapest(self, memory_share: float = 1.0) -> CheapestModes:
        """The mode of every window, of those in which it keeps no more than its share."""
        return self._cheapest(self.ratings, memory_share)

    def least(self, entries: FloatArray) -> CheapestModes:
        """Every window in the mode of its least entry, without fill.

        Args:
            entries: One per micro-batch of `costs`; infinite where there is none to be had.
        """
        entries = np.ascontiguousarray(entries)
        nothing = np.zeros_like(entries)
        return self._cheapest(Ratings(entries, nothing, nothing), 1.0)

    def _cheapest(self, ratings: Ratings, memory_share: float) -> CheapestModes:
        found = _kernels.cheapest_modes(self.cells, self.spans, *ratings, memory_share)
        return CheapestModes(*found)

    def cells_of(self, windows: npt.NDArray[np.uint32]) -> Cells:
        """Which of `costs` windows have, see `cells`; rows are first sample, size and mode."""
        first, size, mode = windows.astype(np.int64).T
        begin, end = self.spans[mode, self.row_of_sample[first]].T
        place = begin + size - 1
        return np.where(place < end, self.cells[np.minimum(place, len(self.cells) - 1)], -1)

    def microbatch(self, first: int, size: int, mode: int) -> MicroBatch:
        """The window of `size` samples from `first` on, in the mode of an index."""
        cell = self.cells[self.spans[mode, self.row_of_sample[first], 0] + size - 1]
        held = self.samples[self.begin[first] : self.begin[first + size]]
        return MicroBatch(
            rows=tuple([(sample.sample_id,) for sample in held]),
            row_tokens=int(self.shapes.row_tokens[cell]),
            recompute=self.modes[mode],
            target_tokens=int(self.shapes.target_tokens[cell]),
        )


def candidates(samples: Sequence[Sample], cost: CostModel, cluster: Cluster) -> Candidates:
    """Looks up what every micro-batch of neighbouring samples costs, once for all uses.

    Args:
        samples: In the order to be cut, at least one.
        cost: Predicts time and memory.
        cluster: Whose memory limits a micro-batch that runs alone.

    Raises:
        DoesNotFitError: A sample alone needs more memory than a stage has.
        NotMeasuredError: The cost model does not know what a sample alone costs.
    """
    lengths = row_lengths(samples, cost.is_encoder_decoder)
    room_bytes = activation_room_bytes(cost, cluster)
    begins = begin_rows(lengths)
    lookup = WindowLookup(
        lengths, np.arange(len(samples) + 1), np.flatnonzero(begins), cost, room_bytes
    )
    doubling = Doubling.of(lookup)
    _check_samples([samples[i] for i in lookup.first], doubling.rated, cost, cluster)
    return _looked_up(samples, begins, lookup, list(doubling.extents()))


def bundled_candidates(samples: Sequence[Sample], cost: CostModel, cluster: Cluster) -> Candidates:
    """As `candidates`; of a large batch only micro-batches of whole bundles, see `bundles`.

    That is what plans are made of. If there is little memory, so that some bundle does not run
    where its samples might, samples are not bundled.
    """
    lengths = row_lengths(samples, cost.is_encoder_decoder)
    begin = bundles(lengths, cluster.n_replicas)
    n_samples = np.diff(begin)
    if n_samples.max() > 1:
        found = _of_bundles(samples, lengths, begin, cost, cluster)
        runs = found.runs_alone[:, found.row_of_sample]
        may_all_run = runs[:, n_samples == 1].all(axis=1)
        if runs.any(axis=0).all() and runs[may_all_run].all():
            return found
    return candidates(samples, cost, cluster)


def _of_bundles(
    samples: Sequence[Sample],
    lengths: RowLengths,
    begin: IntArray,
    cost: CostModel,
    cluster: Cluster,
) -> Candidates:
    longest = RowLengths(*(np.maximum.reduceat(side, begin[:-1]) for side in lengths))
    room_bytes = activation_room_bytes(cost, cluster)
    begins = begin_rows(longest)
    lookup = WindowLookup(longest, begin, np.flatnonzero(begins), cost, room_bytes)
    extents = list(Doubling.of(lookup).extents())
    reach = np.max([extent.most for extent in extents], axis=0)
    begins = begin_rows_of_bundles(begins, np.diff(begin), reach)
    if begins.sum() > len(lookup.first):
        lookup = replace(lookup, first=np.flatnonzero(begins))
        extents = list(Doubling.of(lookup).extents())
    return _looked_up(samples, begins, lookup, extents)


def _looked_up(
    samples: Sequence[Sample], begins: BoolArray, lookup: WindowLookup, extents: Sequence[Extent]
) -> Candidates:
    cells, rated = lookup.windows(extents)
    return Candidates(
        samples,
        lookup.begin,
        lookup.cost.recompute_modes,
        np.cumsum(begins, dtype=np.int32) - 1,
        cells,
        _spans([extent.most for extent in extents]),
        *rated,
    )


def _spans(most: Sequence[IntArray]) -> IntArray:
    """Where rows of so many cells begin and end, given that none lie between them."""
    end = np.cumsum(most).reshape(len(most), -1)
    return np.stack([end - most, end], axis=2)


def _check_samples(
    samples: Sequence[Sample], rated: Sequence[Rated], cost: CostModel, cluster: Cluster
) -> None:
    """Raises for the first sample that runs in no mode; its costs are at its place."""
    shares = np.min([found.ratings.memory_share[: len(samples)] for found in rated], axis=0)
    misfits = np.flatnonzero(np.isinf(shares))
    if misfits.size:
        sample = samples[misfits[0]]
        raise does_not_fit(
            f"sample {sample.sample_id} ({sample.input_tokens} input + "
            f"{sample.target_tokens} target tokens) on its own",
            rated[-1].costs.take(misfits[:1]),  # the mode that keeps least
            cost,
            cluster,
            "cut long samples with data.max_tokens",
        )
