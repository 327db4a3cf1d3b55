import json
from itertools import product

import numpy as np
from hypothesis import example, given
from hypothesis import strategies as st
from tests.examples.decoder_shapes import decoder_shapes
from tests.examples.equal_shares import equal_shares
from tests.examples.length_samples import samples_of
from tests.examples.linear_cost import changed, linear_cost
from tests.jobs.shared_folder import shared_folder

from dynapipe_hpc.architecture.decoder import GptShape
from dynapipe_hpc.data.microbatch import Recompute
from dynapipe_hpc.data.sample import Sample
from dynapipe_hpc.plan.cluster import Cluster
from dynapipe_hpc.planner.batch.memory import fits
from dynapipe_hpc.planner.batch.microbatch_costs import microbatch_costs
from dynapipe_hpc.planner.batch.objective import bottleneck_ms, fill_ms
from dynapipe_hpc.planner.batch.order import order_samples
from dynapipe_hpc.planner.batch.row_length import padded_microbatch
from dynapipe_hpc.planner.batch.windows.price_windows import price_windows
from dynapipe_hpc.planner.batch.windows.window_table import WindowTable
from dynapipe_hpc.planner.cost.config import ProfiledConfig
from dynapipe_hpc.planner.cost.cost_model import (
    CostModel,
    FloatArray,
    Shapes,
    StageCosts,
)
from dynapipe_hpc.planner.cost.profiled import profiled_cost
from dynapipe_hpc.planner.cost.table.import_csv import import_csv

GPT = GptShape(
    n_layers=16, hidden_size=4096, n_heads=32, ffn_size=16384, vocab_size=50304, max_tokens=8192
)
A100S = Cluster(n_stages=4, device_memory_bytes=40_000_000_000)


def test_samples_of_one_row_length_share_a_row_and_what_does_not_fit_is_infinite() -> None:
    samples = order_samples(samples_of([20, 7, 24, 3]))
    cost = linear_cost(launch_ms=(1.0, 2.0), token_ms=(0.1, 0.1), token_bytes=2.0)
    table = price_windows(samples, cost, Cluster(n_stages=2, device_memory_bytes=3 * 48))
    assert table.row_of_sample.tolist() == [0, 0, 1, 1]
    (rows,) = cells_of(table)
    work, fill = (
        [[times[cell] for cell in row if cell >= 0] for row in rows]
        for times in (bottleneck_ms(table.costs), fill_ms(table.costs))
    )
    np.testing.assert_allclose(work[0], [4.4, 6.8])
    np.testing.assert_allclose(work[1][:2], [2.8, 3.6])
    np.testing.assert_allclose(fill[0], [3.4, 5.8])
    np.testing.assert_allclose(fill[1][:2], [1.8, 2.6])


def cells_of(table: WindowTable) -> list[list[list[int]]]:
    """By mode and row, the cells of 1, 2, ... samples."""
    return [
        [table.cells[begin:end].tolist() for begin, end in spans] for spans in table.spans.tolist()
    ]


def work_ms(table: WindowTable, mode: int) -> list[FloatArray]:
    """Of every row in one mode, infinite where windows may not be used."""
    known = np.append(bottleneck_ms(table.costs), np.inf)
    return [known[cells] for cells in cells_of(table)[mode]]


def test_every_mode_has_its_own_cells_as_far_as_it_fits() -> None:
    samples = order_samples(samples_of([24, 24, 24, 24]))
    cost = linear_cost((1.0, 2.0), (0.1, 0.1), token_bytes=2.0, recomputes=True)
    found = price_windows(samples, cost, Cluster(n_stages=2, device_memory_bytes=3 * 48))
    # Full recomputation keeps a quarter, and on top comes as much as without: 2 * 1.0 - 0.5
    np.testing.assert_allclose(work_ms(found, 0)[0][:2], np.array([4.4, 6.8]))
    np.testing.assert_allclose(work_ms(found, 1)[0][:2], np.array([6.6, 10.2]))
    assert [[sum(cell >= 0 for cell in row) for row in rows] for rows in cells_of(found)] == [
        [2],
        [4],
    ]


def test_a_table_has_few_cells_where_only_short_samples_begin_large_windows() -> None:
    samples = order_samples(samples_of(range(8, 808, 8)))
    cost = linear_cost(token_bytes=2.0, recomputes=True)
    table = price_windows(samples, cost, Cluster(n_stages=2, device_memory_bytes=4000))
    n_modes, n_rows, _ = table.spans.shape
    widest = max(len(row) for rows in cells_of(table) for row in rows)
    assert len(table.cells) < n_modes * n_rows * widest / 2


PAIRS = st.lists(st.tuples(st.integers(0, 40), st.integers(1, 40)), min_size=1, max_size=12)


@given(pairs=PAIRS, is_sorted=st.booleans(), room=st.integers(200, 2000))
def test_a_window_is_padded_to_its_longest_on_either_side(
    pairs: list[tuple[int, int]], is_sorted: bool, room: int
) -> None:
    pairs = sorted(pairs, reverse=True) if is_sorted else pairs
    samples = [Sample(i, *pair) for i, pair in enumerate(pairs)]
    cost = linear_cost(has_targets=True, recomputes=True)
    table = price_windows(samples, cost, Cluster(n_stages=2, device_memory_bytes=room))
    for first, size, (mode, recompute) in product(
        range(len(samples)), range(1, len(samples) + 1), enumerate(cost.recompute_modes)
    ):
        if first + size > len(samples):
            continue
        expected = padded_microbatch(samples[first : first + size], recompute, True)
        costs = microbatch_costs([expected], cost)
        cell = table.cells_of(np.array([[first, size, mode]], np.uint32))[0]
        assert (cell >= 0) == bool(fits(costs, np.full(2, float(room)))[0])
        if cell >= 0:
            assert table.microbatch(first, size, mode) == expected
            np.testing.assert_array_equal(table.costs.table[cell], costs.table[0])
            assert bottleneck_ms(table.costs)[cell] == costs.work_ms.max()


def noisy_cost(*noise_bytes: float) -> CostModel:
    """Costs whose stored bytes have noise, by the number of rows."""

    def change(shapes: Shapes, costs: StageCosts) -> StageCosts:
        noise = np.array(noise_bytes)[shapes.n_rows.astype(np.int64) % len(noise_bytes)]
        costs.stored_bytes[:] += noise[:, None]
        return costs

    return changed(linear_cost(), change)


def used_sizes(fits: list[bool]) -> list[bool]:
    """By the rule of price_windows.hpp, given whether 1, 2, 3, ... samples fit."""
    doubling = [size for size in {*(2**j for j in range(5)), len(fits)} if size <= len(fits)]
    largest = max((size for size in doubling if fits[size - 1]), default=0)
    end = next((k for k in range(largest, len(fits)) if not fits[k]), len(fits))
    return [fits[k] and k < end for k in range(len(fits))]


@given(
    lengths=st.lists(st.integers(1, 40), min_size=1, max_size=12),
    noise_bytes=st.lists(st.sampled_from([0.0, 30.0, 150.0]), min_size=2, max_size=7),
    room=st.integers(250, 1000),
)
# Six and seven samples fit, but five do not, and four are the largest power of two that fits.
@example(lengths=[1] * 8, noise_bytes=[150.0, 0.0, 0.0, 0.0, 150.0, 0.0, 0.0], room=80)
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


def test_an_order_of_pairs_has_a_row_per_sample_unless_windows_are_alike() -> None:
    samples = [Sample(i, *pair) for i, pair in enumerate([(8, 6), (8, 6), (24, 6), (8, 6), (8, 6)])]
    table = price_windows(
        samples, linear_cost(has_targets=True), Cluster(n_stages=2, device_memory_bytes=10_000)
    )
    assert table.row_of_sample.tolist() == [0, 1, 2, 3, 3]
    assert table.costs.n_microbatches < 5 * 6 / 2


def costs_one_by_one(samples: list[Sample], cost: CostModel) -> list[list[float]]:
    """Work of every group of neighbours, infinite where it does not fit."""
    row_tokens = np.array([-(-sample.tokens // 8) * 8 for sample in samples])
    room = A100S.device_memory_bytes - cost.static_bytes
    table = []
    for length in dict.fromkeys(row_tokens.tolist()):
        n_rows = np.arange(1, np.count_nonzero(row_tokens <= length) + 1)
        costs = cost.stage_costs(decoder_shapes(n_rows, np.full_like(n_rows, length)))
        transient = np.maximum(costs.forward_transient_bytes, costs.backward_transient_bytes)
        fits = (costs.stored_bytes + transient <= room).all(axis=1)
        table.append(np.where(fits, costs.work_ms.max(axis=1), np.inf).tolist())
    return table


def test_nothing_that_fits_is_missed_on_a_measured_table() -> None:
    profiles = shared_folder("profiles") / "a100_40gb_gpt_6.7b.csv"
    layers = import_csv(profiles, profiles.with_stem(f"{profiles.stem}_parameters"), GPT)
    cost = profiled_cost(
        layers, GPT, equal_shares(GPT, A100S), A100S, config=ProfiledConfig(path=profiles)
    )
    lengths = json.loads((shared_folder("lengths") / "gpt_max2048_gbs16384.json").read_text())
    samples = order_samples(samples_of(lengths["batches"][0]))

    table = price_windows(samples, cost, A100S)
    (rows,) = cells_of(table)
    work_ms = bottleneck_ms(table.costs)
    found = [[work_ms[c] if c >= 0 else np.inf for c in row] for row in rows]
    for row, expected in zip(found, costs_one_by_one(samples, cost), strict=True):
        padding = [np.inf] * (len(samples) - len(row))
        missing = [np.inf] * (len(samples) - len(expected))
        assert [*row, *padding] == [*expected, *missing]
