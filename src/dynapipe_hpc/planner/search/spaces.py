"""The spaces in which plans of an iteration are searched."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from itertools import product

import numpy as np

from dynapipe_hpc.data.microbatch import Layout
from dynapipe_hpc.data.sample import Sample
from dynapipe_hpc.plan.cluster import Cluster
from dynapipe_hpc.planner.batch.memory import activation_room_bytes
from dynapipe_hpc.planner.batch.order import mixed, orders
from dynapipe_hpc.planner.batch.replicas import TooFewMicroBatchesError
from dynapipe_hpc.planner.batch.row_length import ROW_MULTIPLE
from dynapipe_hpc.planner.batch.slice_rule import SliceRule, SliceSetting
from dynapipe_hpc.planner.batch.windows.price_windows import (
    PADDED_ONLY,
    check_samples,
    price_bundled_windows,
    price_layouts,
)
from dynapipe_hpc.planner.batch.windows.slice_windows import with_slices
from dynapipe_hpc.planner.batch.windows.window_table import WindowTable
from dynapipe_hpc.planner.cost.cost_model import CostModel, FloatArray
from dynapipe_hpc.planner.schedule.update import extra_reduce_ms
from dynapipe_hpc.planner.search.space import SearchSpace


def search_spaces(
    samples: Sequence[Sample],
    cost: CostModel,
    cluster: Cluster,
    *,
    layouts: Sequence[Layout] = PADDED_ONLY,
    token_multiple: int = ROW_MULTIPLE,
    slices: SliceSetting = "off",
    split_backward: bool,
) -> Iterator[Mapping[str, SearchSpace]]:
    """Search spaces with all layouts and modes of recomputation together, then with fewer.

    If some samples are worth slices, one in which they run as such comes before all others; it is
    the only one if they cannot run whole, or are to be slices of so many tokens. Then come those
    with one layout each, then those with one mode each. Their search equals the search if only that
    were allowed; which of them are searched, see `BestOfSearch`. Modes in which some sample cannot
    run are left out.

    Args:
        samples: Samples of the iteration, in any order.
        cost: Cost model.
        cluster: The cluster, with memory limit and link.
        layouts: Layouts of micro-batches to choose from, see `price_windows`.
        token_multiple: Multiple that rows are padded to.
        slices: What long samples are cut into, see `SliceRule`.
        split_backward: Whether weight gradients may have separate passes.

    Yields:
        The spaces by order of the samples, the plainest first.

    Raises:
        DoesNotFitError, NotMeasuredError: A sample cannot run.
        TooFewMicroBatchesError: There are fewer samples than replicas.
    """
    if len(samples) < cluster.n_replicas:
        raise TooFewMicroBatchesError.from_counts(len(samples), cluster.n_replicas)
    room_bytes = activation_room_bytes(cost, cluster)
    to_space = partial(
        SearchSpace,
        room_bytes=room_bytes,
        link=cluster.link,
        split_backward=split_backward,
        slowness=_slowness(cost, cluster.n_replicas),
        reduce_ms=extra_reduce_ms(cost),
    )
    may_slice = slices != "off"
    tables = _tables(
        samples, cost, cluster, layouts, token_multiple=token_multiple, may_misfit=may_slice
    )
    spaces = [{order: to_space(table) for order, table in each.items()} for each in tables]
    plainest, table = next(iter(tables[0].items()))
    if sliced := with_slices(table, cost, cluster, SliceRule(slices, token_multiple)):
        yield {plainest: to_space(sliced)}
        if slices != "auto" or not all(each.runs_alone.any(0).all() for each in _each(tables)):
            return
    elif may_slice:
        for each in _each(tables):
            check_samples(each, cost, cluster, token_multiple, may_slice=True)
    yield from spaces
    modes = range(len(cost.recompute_modes))
    of_layouts = spaces[-len(layouts) :]
    for mode, of_layout in product(modes if len(modes) > 1 else (), of_layouts):
        alone = {order: _in_mode(space, mode) for order, space in of_layout.items()}
        if all(space.windows.every_sample_runs for space in alone.values()):
            yield alone


def _tables(
    samples: Sequence[Sample],
    cost: CostModel,
    cluster: Cluster,
    layouts: Sequence[Layout],
    *,
    token_multiple: int,
    may_misfit: bool,
) -> list[dict[str, WindowTable]]:
    """Windows by order of the samples, as `price_layouts` has them in the plainest order.

    Orders in which neighbours are alike are for padded rows alone, others for packed ones.
    """
    (plainest, ordered), *others = orders(samples, cost.is_encoder_decoder).items()
    tables_by_mode = [
        {plainest: table}
        for table in price_layouts(
            ordered, cost, cluster, layouts, token_multiple=token_multiple, may_misfit=may_misfit
        )
    ]
    price = partial(
        price_bundled_windows,
        cost=cost,
        cluster=cluster,
        token_multiple=token_multiple,
        may_misfit=may_misfit,
    )
    only_packed = [Layout.PACKED]
    if cost.is_encoder_decoder and Layout.PACKED in layouts:
        mixture = price(mixed(samples), layouts=only_packed)
    for tables in tables_by_mode:
        if {mode.layout for mode in tables[plainest].modes} == {Layout.PADDED}:
            tables |= {order: price(each, layouts=PADDED_ONLY) for order, each in others}
        elif cost.is_encoder_decoder:
            tables["mixed"] = mixture
    return tables_by_mode


def _each(tables: Sequence[Mapping[str, WindowTable]]) -> Iterator[WindowTable]:
    for of_orders in tables:
        yield from of_orders.values()


def _slowness(cost: CostModel, n_replicas: int) -> FloatArray:
    """Factors by which replicas take longer: those of their slowest stages, for which all wait."""
    return np.ones(n_replicas) if cost.slowness is None else cost.slowness.max(axis=1)


def _in_mode(space: SearchSpace, mode: int) -> SearchSpace:
    return replace(space, windows=space.windows.in_mode(mode))
