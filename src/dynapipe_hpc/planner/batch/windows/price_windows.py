"""Look-up of the costs of every window of neighbouring samples."""

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from dynapipe_hpc.data.sample import Sample
from dynapipe_hpc.plan.cluster import Cluster
from dynapipe_hpc.planner.batch.memory import BoolArray, activation_room_bytes, does_not_fit
from dynapipe_hpc.planner.batch.row_length import RowLengths, row_lengths
from dynapipe_hpc.planner.batch.windows.bundles import bundles
from dynapipe_hpc.planner.batch.windows.doubling import Doubling
from dynapipe_hpc.planner.batch.windows.window_lookup import (
    Extent,
    Rated,
    WindowLookup,
)
from dynapipe_hpc.planner.batch.windows.window_rows import begin_rows, begin_rows_of_bundles
from dynapipe_hpc.planner.batch.windows.window_table import WindowTable
from dynapipe_hpc.planner.cost.cost_model import CostModel, IntArray


def price_windows(samples: Sequence[Sample], cost: CostModel, cluster: Cluster) -> WindowTable:
    """Costs of every micro-batch of neighbouring samples, looked up once for all uses.

    Args:
        samples: Samples in the order to be cut, at least one.
        cost: Cost model of micro-batches.
        cluster: The cluster, with its memory limit.

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


def price_bundled_windows(
    samples: Sequence[Sample], cost: CostModel, cluster: Cluster
) -> WindowTable:
    """Looks up what every micro-batch of whole bundles costs, if the batch is large.

    Plans are made of these, see `bundles`. If memory is so scarce that some bundle cannot run where
    its samples could, samples are not bundled.
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
    return price_windows(samples, cost, cluster)


def _of_bundles(
    samples: Sequence[Sample],
    lengths: RowLengths,
    begin: IntArray,
    cost: CostModel,
    cluster: Cluster,
) -> WindowTable:
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
) -> WindowTable:
    cells, rated = lookup.windows(extents)
    return WindowTable(
        samples,
        lookup.begin,
        lookup.cost.recompute_modes,
        np.cumsum(begins, dtype=np.int32) - 1,
        cells,
        _spans([extent.most for extent in extents]),
        *rated,
    )


def _spans(most: Sequence[IntArray]) -> IntArray:
    """Begin and end of rows of so many cells, which follow each other without gaps."""
    end = np.cumsum(most).reshape(len(most), -1)
    return np.stack([end - most, end], axis=2)


def _check_samples(
    samples: Sequence[Sample], rated: Sequence[Rated], cost: CostModel, cluster: Cluster
) -> None:
    """Raises for the first sample that runs in no mode; the first windows are those of samples."""
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
