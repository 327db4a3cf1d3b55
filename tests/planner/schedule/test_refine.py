"""Schedules improved pass by pass."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.examples.schedule_text import parse_schedule
from tests.examples.stage_costs import drawn_costs, no_limit, tightest_limit
from tests.oracles.every_schedule import least_makespan_ms

from dynapipe_hpc import _kernels
from dynapipe_hpc.plan.cluster import Link
from dynapipe_hpc.planner.cost.cost_model import Cost, StageCosts
from dynapipe_hpc.planner.schedule.adaptive import adaptive
from dynapipe_hpc.planner.schedule.refine import refine
from dynapipe_hpc.planner.schedule.schedule_rule import INSTANT, Schedule, ScheduleRule, kernel_link
from dynapipe_hpc.planner.schedule.simulate import simulate
from dynapipe_hpc.planner.schedule.timeline import Timeline
from dynapipe_hpc.planner.schedule.zb_h1 import zb_h1


def run(schedule: Schedule, costs: StageCosts, link: Link = INSTANT) -> Timeline:
    return simulate(schedule, costs, link, np.zeros(costs.n_stages))


def uneven_costs(n_microbatches: int, n_stages: int, seed: int) -> StageCosts:
    random = np.random.default_rng(seed)
    table = random.integers(1, 9, (n_microbatches, n_stages, len(Cost))).astype(np.float64)
    table[..., Cost.BACKWARD_MS] += table[..., Cost.WEIGHT_MS]  # which is part of it
    return StageCosts(table)


@pytest.mark.parametrize("rule", [adaptive, zb_h1])
@given(costs=drawn_costs(), latency_ms=st.integers(0, 5), seed=st.integers(0, 9))
@settings(max_examples=40)
def test_a_refined_schedule_is_valid_and_never_longer(
    rule: ScheduleRule, costs: StageCosts, latency_ms: int, seed: int
) -> None:
    link = Link(latency_ms=latency_ms, bytes_per_ms=4)
    start = rule(costs, no_limit(costs), link)
    before = run(start, costs, link)
    found = refine(start, costs, before.peak_bytes, link, n_moves=200, seed=seed)
    assert [sorted(row) for row in found.passes] == [sorted(row) for row in start.passes]
    after = run(found, costs, link)
    assert after.makespan_ms <= before.makespan_ms
    assert (after.peak_bytes <= before.peak_bytes).all()


@pytest.mark.parametrize("reduces", [False, True])
@pytest.mark.parametrize("room", [9.0, np.inf])
@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize(("shape", "split"), [((3, 2), False), ((2, 3), False), ((2, 3), True)])
def test_the_best_of_all_schedules_is_found_where_there_are_few(
    shape: tuple[int, int], split: bool, seed: int, room: float, reduces: bool
) -> None:
    reduce_ms = reduces * np.linspace(0, 9, shape[1])
    costs = replace(uneven_costs(*shape, seed), reduce_ms=reduce_ms)
    limit = tightest_limit(costs) + room
    start = one_by_one(shape, split=split)
    found = refine(start, costs, limit, INSTANT, n_moves=4000)
    best_ms = least_makespan_ms(costs, INSTANT, split=split, limit_bytes=limit, reduce_ms=reduce_ms)
    assert (run(found, costs).end_ms[:, -1] + reduce_ms).max() == best_ms


def test_what_all_stages_reduce_alike_changes_no_schedule() -> None:
    costs = uneven_costs(6, 3, seed=0)
    start = adaptive(costs, no_limit(costs))
    none, alike = (
        refine(
            start,
            replace(costs, reduce_ms=reduce_ms),
            no_limit(costs),
            INSTANT,
            n_moves=500,
        )
        for reduce_ms in (None, np.full(3, 64.0))
    )
    assert none == alike


def one_by_one(shape: tuple[int, int], *, split: bool) -> Schedule:
    """A micro-batch after the other, which needs the least memory."""
    n_microbatches, n_stages = shape
    passes = ["F{0} B{0} W{0}" if split else "F{0} B{0}"] * n_microbatches
    row = " ".join(text.format(i) for i, text in enumerate(passes))
    return parse_schedule("\n".join([row] * n_stages))


def test_the_same_seed_finds_the_same_schedule() -> None:
    costs = uneven_costs(6, 3, seed=0)
    start = adaptive(costs, no_limit(costs))
    first, second, other = (
        refine(start, costs, no_limit(costs), INSTANT, n_moves=500, seed=seed) for seed in (1, 1, 2)
    )
    assert first == second
    assert first != other


def test_an_order_without_passes_is_refused() -> None:
    nothing = _kernels.CostTable(np.zeros((0, 2, len(Cost))))
    with pytest.raises(ValueError, match="order must hold at least one pass"):
        _kernels.refine_schedule(
            np.zeros((2, 0), np.int32), nothing, np.ones(2), kernel_link(INSTANT), 10, 0
        )
