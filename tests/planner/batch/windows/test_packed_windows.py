"""Windows of packed rows: tokens and squared lengths are added up, and nothing is padded."""

from collections.abc import Sequence
from itertools import product
from unittest.mock import patch

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.examples.length_samples import samples_of
from tests.examples.linear_cost import linear_cost, packed_apart

from dynapipe_hpc.data.microbatch import (
    ExecutionMode,
    Layout,
    MicroBatch,
    PackedRow,
    PaddedRows,
)
from dynapipe_hpc.data.sample import Sample
from dynapipe_hpc.plan.cluster import Cluster
from dynapipe_hpc.planner.batch.memory import DoesNotFitError, fits
from dynapipe_hpc.planner.batch.microbatch_costs import microbatch_costs
from dynapipe_hpc.planner.batch.order import order_samples
from dynapipe_hpc.planner.batch.windows import bundles
from dynapipe_hpc.planner.batch.windows import price_windows as rules
from dynapipe_hpc.planner.batch.windows.price_windows import (
    price_windows,
)
from dynapipe_hpc.planner.batch.windows.window_table import WindowTable

COST = linear_cost(token_bytes=2.0, recomputes=True)
LAYOUT_COST = packed_apart(
    COST, linear_cost(token_ms=(0.008, 0.007), token_bytes=1.5, recomputes=True)
)
"""Tokens of packed rows take less time and memory."""
BOTH = (Layout.PADDED, Layout.PACKED)
LENGTHS = st.lists(st.integers(1, 40), min_size=1, max_size=7)


def room(n_bytes: int) -> Cluster:
    return Cluster(n_stages=2, device_memory_bytes=n_bytes)


def in_mode(samples: Sequence[Sample], mode: ExecutionMode, multiple: int = 8) -> MicroBatch:
    """The micro-batch of some samples, made one by one."""
    if mode.layout is Layout.PADDED:
        longest = max(sample.tokens for sample in samples)
        ids = tuple(sample.sample_id for sample in samples)
        return PaddedRows(ids, -(-longest // multiple) * multiple, mode.recompute)
    offsets = [0]
    for sample in samples:
        offsets.append(offsets[-1] + sample.tokens)
    return PackedRow(
        tuple(sample.sample_id for sample in samples),
        -(-offsets[-1] // multiple) * multiple,
        offsets=tuple(offsets),
        recompute=mode.recompute,
    )


def check_every_window(table: WindowTable, n_bytes: int, multiple: int = 8) -> None:
    """Each is there if it fits, as the micro-batch of its samples, at its costs."""
    begin, n_bundles = table.begin.tolist(), len(table.begin) - 1
    for first, size, (index, mode) in product(
        range(n_bundles), range(1, n_bundles + 1), enumerate(table.modes)
    ):
        if first + size > n_bundles:
            continue
        expected = in_mode(table.samples[begin[first] : begin[first + size]], mode, multiple)
        costs = microbatch_costs([expected], LAYOUT_COST)
        cell = table.cells_of(np.array([[first, size, index]], np.uint32))[0]
        assert (cell >= 0) == bool(fits(costs, np.full(2, float(n_bytes)))[0])
        if cell >= 0:
            assert table.microbatch(first, size, index) == expected
            np.testing.assert_allclose(table.costs.table[cell], costs.table[0], rtol=1e-12)


@given(
    lengths=LENGTHS,
    n_bytes=st.integers(240, 2000),
    is_sorted=st.booleans(),
    multiple=st.sampled_from([8, 24, 64, 512]),
)
@settings(max_examples=30)
def test_windows_of_both_layouts_are_those_of_their_samples(
    lengths: list[int], n_bytes: int, is_sorted: bool, multiple: int
) -> None:
    samples = samples_of(lengths)
    samples = order_samples(samples) if is_sorted else samples
    n_bytes *= multiple // 8  # of each sample alone
    for layouts in ((Layout.PACKED,), BOTH):
        table = price_windows(samples, LAYOUT_COST, room(n_bytes), layouts, token_multiple=multiple)
        assert table.modes == tuple(
            ExecutionMode(layout, mode)
            for layout in layouts
            for mode in LAYOUT_COST.recompute_modes
        )
        check_every_window(table, n_bytes, multiple)


@given(lengths=st.lists(st.integers(1, 40), min_size=8, max_size=10))
@settings(max_examples=10)
def test_windows_of_bundles_hold_all_their_samples(lengths: list[int]) -> None:
    with (
        patch.object(bundles, "FEWEST_SAMPLES", 8 * bundles.PACKED_SHARE),
        patch.object(bundles, "FEWEST_PER_REPLICA", 1),
        patch.object(bundles, "BUNDLES_PER_REPLICA", 2),
        patch.object(bundles, "BUNDLES_PER_LONGEST", 1.2),
    ):
        table = price_windows(
            order_samples(samples_of(lengths)), LAYOUT_COST, room(5000), BOTH, may_bundle=True
        )
    check_every_window(table, 5000)


def most_of(lengths: Sequence[int], launch_ms: float, multiple: int = 8) -> list[int]:
    """The most samples of a packed window from each on, in a batch of more than 20 samples."""
    cost = linear_cost(launch_ms=(launch_ms, launch_ms))
    with patch.object(rules, "FEWEST_LIMITED", 20):
        table = price_windows(
            samples_of(lengths), cost, room(10**9), [Layout.PACKED], token_multiple=multiple
        )
    begin, end = table.spans[0].T
    most: list[int] = (end - begin).tolist()
    return most


def test_windows_of_large_batches_keep_every_stage_busy() -> None:
    lengths = [60, 40, *[10] * 30]  # 400 tokens on 1 x 2 ranks
    most, filled, dear = (
        np.array(most_of(lengths, launch_ms, multiple))
        for launch_ms, multiple in ((0.0, 8), (0.0, 256), (0.2, 8))
    )
    assert most[[0, 1, 2, 25, 31]].tolist() == [4, 9, 12, 7, 1]
    assert filled[[0, 1, 2, 25, 31]].tolist() == [17, 22, 25, 7, 1]
    assert dear[[0, 1, 2, 31]].tolist() == [12, 17, 20, 1]
    assert most_of(lengths[:19], 0.0) == [*range(19, 0, -1)]


def test_a_sample_that_does_not_fit_is_told_with_the_memory_that_it_needs_packed() -> None:
    with pytest.raises(DoesNotFitError, match="needs 117 bytes"):  # 156 if it is padded
        price_windows(samples_of([100]), LAYOUT_COST, room(100), [Layout.PACKED])
    with pytest.raises(DoesNotFitError, match="needs 288 bytes"):  # in a row of 256 tokens
        price_windows(
            samples_of([100]), LAYOUT_COST, room(100), [Layout.PACKED], token_multiple=256
        )
