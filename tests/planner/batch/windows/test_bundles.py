from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from itertools import combinations, pairwise
from unittest.mock import patch

import numpy as np
from hypothesis import given
from hypothesis import strategies as st
from tests.examples.linear_cost import linear_cost

from dynapipe_hpc.data.microbatch import Layout
from dynapipe_hpc.data.sample import Sample
from dynapipe_hpc.plan.cluster import Cluster
from dynapipe_hpc.planner.batch.memory import fits
from dynapipe_hpc.planner.batch.microbatch_costs import microbatch_costs
from dynapipe_hpc.planner.batch.order import order_pairs, order_samples
from dynapipe_hpc.planner.batch.row_length import RowLengths, padded_microbatch, row_lengths
from dynapipe_hpc.planner.batch.windows import bundles as rule
from dynapipe_hpc.planner.batch.windows.bundles import bundles
from dynapipe_hpc.planner.batch.windows.price_windows import price_windows

COST = linear_cost(token_bytes=2.0, recomputes=True)
PAIR_COST = linear_cost(token_bytes=2.0, has_targets=True, recomputes=True)
PAIRS = st.lists(st.tuples(st.integers(0, 100), st.integers(1, 100)), min_size=8, max_size=24)


@contextmanager
def even_of_few_samples() -> Iterator[None]:
    """As if batches were large from eight samples on."""
    with (
        patch.object(rule, "FEWEST_SAMPLES", 8),
        patch.object(rule, "FEWEST_PER_REPLICA", 1),
        patch.object(rule, "BUNDLES_PER_REPLICA", 2),
        patch.object(rule, "BUNDLES_PER_LONGEST", 1.2),
    ):
        yield


def samples_of_pairs(pairs: Sequence[tuple[int, int]]) -> list[Sample]:
    return [Sample(i, *pair) for i, pair in enumerate(pairs)]


def drawn(n_samples: int) -> list[Sample]:
    """Mostly short, a few long."""
    lengths = np.random.default_rng(0).lognormal(4.6, 0.8, n_samples).clip(2, 2048).astype(int)
    return order_samples([Sample(i, n - 1, 1) for i, n in enumerate(lengths.tolist())])


def test_bundles_of_packed_rows_are_limited_by_their_tokens() -> None:
    """Bundles have at most 27 tokens, as 33 / 1.2: four short samples together, padded only two."""
    lengths = RowLengths(np.array([10, 1, 9, 1, 33]), np.zeros(5, np.int64))
    with even_of_few_samples(), patch.object(rule, "FEWEST_SAMPLES", 5):
        assert bundles(lengths, 1, [Layout.PACKED]).tolist() == [0, 4, 5]
        assert bundles(lengths, 1, [Layout.PACKED, Layout.PADDED]).tolist() == [0, 2, 4, 5]


@given(PAIRS, st.integers(1, 3))
def test_bundles_are_as_large_as_they_may(pairs: list[tuple[int, int]], n_replicas: int) -> None:
    samples = order_pairs(samples_of_pairs(pairs))
    lengths = row_lengths(samples, is_encoder_decoder=True)
    tokens = (lengths.row_tokens + lengths.target_tokens).tolist()
    with even_of_few_samples():
        begin = bundles(lengths, n_replicas).tolist()
    assert begin[0] == 0
    assert begin[-1] == len(samples)
    for first, end in pairwise(begin):
        allowed = [
            size
            for size in (1, 2, 4, 8, 16)
            if first + size <= len(samples)
            for held in [[side[first : first + size] for side in lengths]]
            for padded in [size * sum(int(side.max()) for side in held)]
            if size == 1 or padded <= min(max(tokens) / 1.2, sum(tokens) / 2 / n_replicas)
        ]
        assert end - first == max(allowed)


@given(pairs=PAIRS, is_sorted=st.booleans(), has_targets=st.booleans(), room=st.integers(600, 5000))
def test_windows_of_bundles_are_padded_to_their_longest(
    pairs: list[tuple[int, int]], is_sorted: bool, has_targets: bool, room: int
) -> None:
    samples = samples_of_pairs(pairs)
    samples = order_samples(samples) if is_sorted else samples
    cost = PAIR_COST if has_targets else COST
    with even_of_few_samples():
        table = price_windows(
            samples, cost, Cluster(n_stages=2, device_memory_bytes=room), may_bundle=True
        )
    begin = table.begin.tolist()
    modes = range(len(cost.recompute_modes))
    windows = [
        (first, last - first, mode)
        for first, last in combinations(range(len(begin)), 2)
        for mode in modes
    ]
    expected = [
        padded_microbatch(
            samples[begin[first] : begin[first + size]], cost.recompute_modes[mode], has_targets
        )
        for first, size, mode in windows
    ]
    costs, cells = microbatch_costs(expected, cost), table.cells_of(np.array(windows, np.uint32))
    np.testing.assert_array_equal(cells >= 0, fits(costs, np.full(2, float(room))))
    for window, cell, microbatch, own in zip(windows, cells, expected, costs.table, strict=True):
        if cell >= 0:
            assert table.microbatch(*window) == microbatch
            np.testing.assert_array_equal(table.costs.table[cell], own)


def test_bundles_have_few_tokens_in_rows_of_the_multiple_that_plans_have() -> None:
    samples = order_samples(drawn(4000))
    rows = row_lengths(samples, is_encoder_decoder=False)
    cluster = Cluster(n_stages=2, device_memory_bytes=10**9)
    table = price_windows(samples, COST, cluster, token_multiple=128, may_bundle=True)
    lengths = RowLengths(-(-rows.row_tokens // 128) * 128, rows.target_tokens)
    # Not as lists: where CI is set, pytest would take a minute to show how they differ.
    assert np.array_equal(table.begin, bundles(lengths, 1))
    assert not np.array_equal(table.begin, bundles(rows, 1))


def test_samples_of_rows_that_are_filled_up_by_much_are_bundled() -> None:
    samples, cluster = order_samples(drawn(4000)), Cluster(n_stages=2, device_memory_bytes=10**9)
    of_128, of_2048 = (
        price_windows(
            samples, COST, cluster, [Layout.PACKED], token_multiple=multiple, may_bundle=True
        ).begin
        for multiple in (128, 2048)
    )
    assert of_128.tolist() == of_2048.tolist()
    assert len(of_128) < len(samples)
