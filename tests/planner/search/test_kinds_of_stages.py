"""Tables of kinds of stages mean what tables of all stages mean."""

import numpy as np
import pytest
from tests.planner.test_kernel_inputs import CELLS, LINK, ROWS, SPANS

from dynapipe_hpc import _kernels
from dynapipe_hpc.planner.batch.memory import activation_bytes
from dynapipe_hpc.planner.cost.cost_model import Cost, FloatArray, Kinds, SliceMemory, StageCosts

KINDS = np.array([0, 2, 2, 1, 2], np.int32)
ROOM = np.array([30.0, 40.0, 25.0, 35.0, 50.0])
REDUCE_MS = np.array([9.0, 0.0, 4.0, 0.0, 7.0])


def of_kinds(seed: int) -> FloatArray:
    table = np.random.default_rng(seed).uniform(1, 10, (3, 3, len(Cost)))
    table[..., Cost.BACKWARD_MS] += table[..., Cost.WEIGHT_MS]
    return table


@pytest.mark.parametrize("seed", range(10))
def test_plans_are_those_of_all_stages(seed: int) -> None:
    table = of_kinds(seed)
    tables = _kernels.CostTable(table, KINDS), _kernels.CostTable(table[:, KINDS].copy())
    windows = [_kernels.WindowCosts(each, CELLS, SPANS, ROWS) for each in tables]
    for split in (False, True):
        plans, of_all_stages = _kernels.find_plans(
            windows, ROOM, LINK, split, REDUCE_MS, np.ones(2), 12_500, seed
        )
        ends_ms = [plan.makespan_ms for plan in plans]
        assert ends_ms == [plan.makespan_ms for plan in of_all_stages]


@pytest.mark.parametrize("seed", range(5))
def test_schedules_and_their_times_are_those_of_all_stages(seed: int) -> None:
    costs = StageCosts(of_kinds(seed), KINDS)
    of_kind, of_all = costs.checked, StageCosts(costs.table).checked
    for split in (False, True):
        codes = _kernels.list_schedule(of_kind, ROOM, LINK, split)
        np.testing.assert_array_equal(codes, _kernels.list_schedule(of_all, ROOM, LINK, split))
        found, expected = (
            _kernels.simulate(codes, each, np.zeros(5), LINK) for each in (of_kind, of_all)
        )
        np.testing.assert_array_equal(found.end_ms, expected.end_ms)
        np.testing.assert_array_equal(found.peak_bytes, expected.peak_bytes)
        for each in (of_kind, of_all):
            np.testing.assert_array_equal(_kernels.activation_peaks(codes, each), found.peak_bytes)
    expected_codes = _kernels.cyclic_schedule(of_all, ROOM)
    np.testing.assert_array_equal(_kernels.cyclic_schedule(of_kind, ROOM), expected_codes)


def test_windows_are_those_of_all_stages() -> None:
    """Windows of four samples, of which few fit together on the stages with the least memory."""
    table = of_kinds(0)[0]
    lengths, room = np.array([12, 8, 4, 2]), np.array([30.0, 40.0, 45.0, 14.0, 50.0])

    def windows(kinds: Kinds | None) -> _kernels.PricedWindows:
        of_token = table if kinds is not None else table[KINDS]

        def price(_layout: int, _mode: int, *columns: FloatArray) -> None:
            n_rows, row_tokens, _, _, costs = columns
            costs[...] = (n_rows * row_tokens / 8)[:, None, None] * of_token

        sums = (lengths, 0 * lengths, 0 * lengths + 1, lengths**2, np.arange(5))
        known = (np.inf, 1.0, 1.0)
        return _kernels.price_windows(*sums, [(True, np.inf)], 1, known, room, kinds, 1, price)

    found, expected = windows(KINDS), windows(None)
    assert 4 < len(found.cells) < 10
    for name in ("cells", "spans", "n_rows"):
        assert getattr(found, name).tolist() == getattr(expected, name).tolist()


def test_what_does_not_fit_is_what_does_not_fit_on_all_stages() -> None:
    costs = StageCosts(of_kinds(0), KINDS)
    needed = activation_bytes(costs)
    room = needed.max(axis=0)
    assert _kernels.first_misfit(costs.checked, room) is None
    for stage in range(5):
        tight = room.copy()
        tight[stage] = np.nextafter(room[stage], 0)
        misfit = _kernels.first_misfit(costs.checked, tight)
        assert misfit is not None
        assert (misfit.stage, misfit.needed_bytes) == (stage, room[stage])
        assert misfit.microbatch == int(np.argmax(needed[:, stage]))


def test_columns_are_those_of_all_stages() -> None:
    costs, expected = StageCosts(of_kinds(1), KINDS), of_kinds(1)[:, KINDS]
    assert (costs.n_microbatches, costs.n_stages) == (3, 5)
    np.testing.assert_array_equal(costs.table, expected)
    assert costs.table.flags.c_contiguous
    np.testing.assert_array_equal(costs.stored_bytes, expected[..., Cost.STORED_BYTES])
    taken = StageCosts.joined([costs, costs]).take(np.array([4, 2]))
    np.testing.assert_array_equal(taken.table, expected[[1, 2]])


def test_slices_keep_what_the_first_stage_of_a_kind_does() -> None:
    kept = np.array([7.0, 7.0, 3.0, 5.0, 3.0])
    kinds = np.array([2, 2, 0, 1, 0], np.int32)
    memory = SliceMemory(kept, 2 * kept, 3 * kept)
    assert memory.of_kinds(kinds).kept.tolist() == [3, 5, 7]
    assert memory.of_kinds(None) is memory


@pytest.mark.parametrize("kinds", [[0, 3], [-1], [], [0, 2]])
def test_kinds_that_do_not_exist_are_refused(kinds: list[int]) -> None:
    with pytest.raises(ValueError, match="kind_of_stage must"):
        _kernels.CostTable(of_kinds(0), np.array(kinds, np.int32))
