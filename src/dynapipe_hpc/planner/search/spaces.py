"""The spaces in which plans of an iteration are searched."""

from collections.abc import Iterator, Sequence
from functools import partial

from dynapipe_hpc.data.microbatch import Layout
from dynapipe_hpc.data.sample import Sample
from dynapipe_hpc.plan.cluster import Cluster
from dynapipe_hpc.planner.batch.order import halved, orders
from dynapipe_hpc.planner.batch.replicas import TooFewMicroBatchesError
from dynapipe_hpc.planner.batch.row_length import ROW_MULTIPLE
from dynapipe_hpc.planner.batch.slice_rule import SliceRule, SliceSetting
from dynapipe_hpc.planner.batch.windows.price_windows import (
    PADDED_ONLY,
    check_samples,
    price_bundled_windows,
)
from dynapipe_hpc.planner.batch.windows.slice_windows import with_slices
from dynapipe_hpc.planner.batch.windows.window_table import WindowTable
from dynapipe_hpc.planner.cost.cost_model import CostModel


def search_spaces(
    samples: Sequence[Sample],
    cost: CostModel,
    cluster: Cluster,
    *,
    layouts: Sequence[Layout] = PADDED_ONLY,
    token_multiple: int = ROW_MULTIPLE,
    slices: SliceSetting = "off",
) -> Iterator[WindowTable]:
    """Windows of the samples in every order, in all layouts and modes of recomputation together.

    Packed rows have an order of their own besides, in which windows of many samples are about
    equal: that counts where many replicas share the work, or where time rises in a step, as on a
    GPU that waits for launches. If some samples are worth slices, windows in which they run as such
    come first; they are the only ones if these samples cannot run whole, or are to be slices of so
    many tokens.

    Args:
        samples: Samples of the iteration, in any order.
        cost: Cost model.
        cluster: The cluster, with memory limit and link.
        layouts: Layouts of micro-batches to choose from, see `price_windows`.
        token_multiple: Multiple that rows are padded to.
        slices: What long samples are cut into, see `SliceRule`.

    Raises:
        DoesNotFitError, NotMeasuredError: A sample cannot run.
        TooFewMicroBatchesError: There are fewer samples than replicas.
    """
    if len(samples) < cluster.n_replicas:
        raise TooFewMicroBatchesError.from_counts(len(samples), cluster.n_replicas)
    may_slice = slices != "off"
    price = partial(
        price_bundled_windows,
        cost=cost,
        cluster=cluster,
        token_multiple=token_multiple,
        may_misfit=may_slice,
    )
    plainest, *others = orders(samples, cost.is_encoder_decoder)
    tables = [price(each, layouts=layouts) for each in (plainest, *others)]
    if Layout.PACKED in layouts:
        packed = price(halved(plainest), layouts=[Layout.PACKED], may_misfit=True)
        if packed.every_sample_runs:
            tables.append(packed)
    if sliced := with_slices(tables[0], cost, cluster, SliceRule(slices, token_multiple)):
        yield sliced
        if slices != "auto" or not tables[0].every_sample_runs:
            return
    elif may_slice:
        check_samples(tables[0], cost, cluster, token_multiple, may_slice=True)
    yield from tables
