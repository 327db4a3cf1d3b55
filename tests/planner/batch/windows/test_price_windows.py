"""Prices of windows of samples and of bundles, padded and packed."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from itertools import combinations, pairwise, product
from unittest.mock import patch

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from tests.examples.linear_cost import changed, linear_cost, packed_apart, samples_of

from dynapipe_hpc.data.microbatch import ExecutionMode, Layout, MicroBatch, Recompute
from dynapipe_hpc.data.sample import Sample
from dynapipe_hpc.plan.cluster import Cluster
from dynapipe_hpc.planner.batch import price_windows as rules
from dynapipe_hpc.planner.batch.memory import DoesNotFitError, fits
from dynapipe_hpc.planner.batch.microbatch_costs import microbatch_costs
from dynapipe_hpc.planner.batch.order import order_pairs, order_samples
from dynapipe_hpc.planner.batch.packed_shapes import packed_microbatch
from dynapipe_hpc.planner.batch.price_windows import bundles, price_windows
from dynapipe_hpc.planner.batch.row_length import RowLengths, padded_microbatch, row_lengths
from dynapipe_hpc.planner.batch.window_table import WindowTable
from dynapipe_hpc.planner.cost.cost_model import CostModel, Shapes, StageCosts


def cells_of(table: WindowTable) -> list[list[list[int]]]:
    """By mode and row, the cells of 1, 2, ... samples."""
    return [
        [table.cells[begin:end].tolist() for begin, end in spans] for spans in table.spans.tolist()
    ]


def noisy_cost(*noise_bytes: float) -> CostModel:
    """Costs whose stored bytes have noise, by the number of rows."""

    def change(shapes: Shapes, costs: StageCosts) -> StageCosts:
        noise = np.array(noise_bytes)[shapes.n_rows.astype(np.int64) % len(noise_bytes)]
        costs.stored_bytes[:] += noise[:, None]
        return costs

    return changed(linear_cost(), change)


def used_sizes(fits: list[bool]) -> list[bool]:
    """By the rule of price_windows.hpp, given whether 1, 2, 3, ... samples fit."""
    end = next((n for n in (8, 16) if not fits[min(n, len(fits)) - 1]), len(fits))
    return [each and k < end for k, each in enumerate(fits)]


@given(
    lengths=st.lists(st.integers(1, 40), min_size=1, max_size=20),
    noise_bytes=st.lists(st.sampled_from([0.0, 30.0, 150.0]), min_size=2, max_size=7),
    room=st.integers(250, 1000),
)
# Nine samples fit, but eight do not; or eight do, but four do not.
@example(lengths=[1] * 9, noise_bytes=[150.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0], room=250)
@example(lengths=[1] * 9, noise_bytes=[0.0, 0.0, 0.0, 300.0, 0.0, 0.0, 0.0], room=250)
def test_which_windows_are_used_does_not_depend_on_where_noise_is_met(
    lengths: list[int], noise_bytes: list[float], room: int
) -> None:
    samples = order_samples(samples_of(lengths))
    cost = noisy_cost(noise_bytes[0], 0.0, *noise_bytes[1:])
    table = price_windows(samples, cost, Cluster(n_stages=2, device_memory_bytes=room))
    for first in np.unique(table.row_of_sample, return_index=True)[1].tolist():
        windows = [
            padded_microbatch(samples[first : first + size], Recompute.NONE)
            for size in range(1, len(samples) - first + 1)
        ]
        all_fit = fits(microbatch_costs(windows, cost), np.full(2, float(room))).tolist()
        found = [cell >= 0 for cell in cells_of(table)[0][table.row_of_sample[first]]]
        n = min(len(found), len(all_fit))
        assert found[:n] == used_sizes(all_fit)[:n]
        assert not any(found[n:] + used_sizes(all_fit)[n:])


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
    """The micro-batch of some samples, filled up to a multiple."""
    make = padded_microbatch if mode.layout is Layout.PADDED else packed_microbatch
    made = make(samples, mode.recompute)
    return replace(made, row_tokens=-(-made.row_tokens // multiple) * multiple)


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


def most_of(
    lengths: Sequence[int], layout: Layout = Layout.PACKED, least: int = 0, **divided: int
) -> list[int]:
    """The most samples of a window from each on; `least`: tokens that are never too many."""
    cluster = room(10**9).model_copy(update=divided)
    with patch.object(rules, "SMALL_WINDOW_TOKENS", least):
        table = price_windows(
            samples_of(lengths),
            linear_cost((1.0,) * cluster.n_stages, (0.01,) * cluster.n_stages),
            cluster,
            [layout],
        )
    begin, end = table.spans[0][table.row_of_sample].T
    most: list[int] = (end - begin).tolist()
    return most


def test_windows_keep_every_stage_busy() -> None:
    lengths = [64, 40, *[8] * 30]  # 344 tokens on 1 x 2 ranks
    packed, padded = (np.array(most_of(lengths, layout)) for layout in reversed(BOTH))
    assert packed[[0, 1, 2, 25, 31]].tolist() == [10, 17, 21, 7, 1]
    assert padded[:3].tolist() == [2, 4, 21]
    assert most_of([104, *[8] * 22])[1] == 22  # a share has 140, two longest samples 208
    assert most_of(lengths, n_replicas=2)[2] == 16  # as two longest samples
    assert most_of(lengths, n_stages=1) == [*range(32, 0, -1)]
    assert most_of(lengths, least=344) == [*range(32, 0, -1)]


def test_windows_far_beyond_memory_take_none() -> None:
    """All 450 million windows of a mode would take 58 GB."""
    table = price_windows(
        samples_of([8] * 30_000), linear_cost(token_bytes=2.0), room(100), [Layout.PACKED]
    )
    assert len(table.cells) <= 8 * 30_000
    assert np.diff(table.spans).max() == 8


def test_a_sample_that_does_not_fit_is_told_with_the_memory_that_it_needs_packed() -> None:
    with pytest.raises(DoesNotFitError, match="needs 117 bytes"):  # 156 if it is padded
        price_windows(samples_of([100]), LAYOUT_COST, room(100), [Layout.PACKED])
    with pytest.raises(DoesNotFitError, match="needs 288 bytes"):  # in a row of 256 tokens
        price_windows(
            samples_of([100]), LAYOUT_COST, room(100), [Layout.PACKED], token_multiple=256
        )


PAIR_COST = linear_cost(token_bytes=2.0, has_targets=True, recomputes=True)
PAIRS = st.lists(st.tuples(st.integers(0, 100), st.integers(1, 100)), min_size=8, max_size=24)


@contextmanager
def even_of_few_samples() -> Iterator[None]:
    """As if batches were large from eight samples on."""
    with (
        patch.object(rules, "FEWEST_SAMPLES", 8),
        patch.object(rules, "FEWEST_PER_REPLICA", 1),
        patch.object(rules, "BUNDLES_PER_REPLICA", 2),
        patch.object(rules, "BUNDLES_PER_LONGEST", 1.2),
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
    with even_of_few_samples(), patch.object(rules, "FEWEST_SAMPLES", 5):
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


@given(
    pairs=PAIRS,
    is_sorted=st.booleans(),
    has_targets=st.booleans(),
    may_bundle=st.booleans(),
    room=st.integers(600, 5000),
)
def test_windows_are_padded_to_their_longest_on_either_side(
    pairs: list[tuple[int, int]], is_sorted: bool, has_targets: bool, may_bundle: bool, room: int
) -> None:
    samples = samples_of_pairs(pairs)
    samples = order_samples(samples) if is_sorted else samples
    cost = PAIR_COST if has_targets else COST
    with even_of_few_samples():
        table = price_windows(
            samples, cost, Cluster(n_stages=2, device_memory_bytes=room), may_bundle=may_bundle
        )
    begin = table.begin.tolist()
    assert may_bundle or begin == list(range(len(samples) + 1))
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
    bottlenecks_ms = table.costs.bottleneck_ms
    np.testing.assert_array_equal(cells >= 0, fits(costs, np.full(2, float(room))))
    for window, cell, microbatch, own in zip(windows, cells, expected, costs.table, strict=True):
        if cell >= 0:
            assert table.microbatch(*window) == microbatch
            np.testing.assert_array_equal(table.costs.table[cell], own)
            assert bottlenecks_ms[cell] == StageCosts(own[np.newaxis]).work_ms.max()


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
            samples,
            COST,
            cluster,
            [Layout.PACKED],
            token_multiple=multiple,
            may_bundle=True,
        ).begin
        for multiple in (128, 2048)
    )
    assert of_128.tolist() == of_2048.tolist()
    assert len(of_128) < len(samples)
