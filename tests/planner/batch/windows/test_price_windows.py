from itertools import product

import numpy as np
from hypothesis import example, given
from hypothesis import strategies as st
from tests.examples.length_samples import samples_of
from tests.examples.linear_cost import changed, linear_cost

from dynapipe_hpc.data.microbatch import Recompute
from dynapipe_hpc.data.sample import Sample
from dynapipe_hpc.plan.cluster import Cluster
from dynapipe_hpc.planner.batch.memory import fits
from dynapipe_hpc.planner.batch.microbatch_costs import microbatch_costs
from dynapipe_hpc.planner.batch.objective import bottleneck_ms
from dynapipe_hpc.planner.batch.order import order_samples
from dynapipe_hpc.planner.batch.row_length import padded_microbatch
from dynapipe_hpc.planner.batch.windows.price_windows import price_windows
from dynapipe_hpc.planner.batch.windows.window_table import WindowTable
from dynapipe_hpc.planner.cost.cost_model import (
    CostModel,
    Shapes,
    StageCosts,
)


def cells_of(table: WindowTable) -> list[list[list[int]]]:
    """By mode and row, the cells of 1, 2, ... samples."""
    return [
        [table.cells[begin:end].tolist() for begin, end in spans] for spans in table.spans.tolist()
    ]


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
@example(lengths=[1] * 8, noise_bytes=[150.0, 0.0, 0.0, 0.0, 150.0, 0.0, 0.0], room=200)
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
