"""The schedules of the published planner: orders, makespans and peaks measured from it.

Passes take t and 2t ms on every stage and keep 1,000 bytes (case C: a multiple). Where memory is
scarce the published planner knows one number for all stages, and no transient memory. Transfers
of 5 MB were found to take 0.6 ms: with that, all cases that have them agree.
"""

import json
from dataclasses import replace
from pathlib import Path
from textwrap import dedent
from typing import Any

import numpy as np
import pytest
from tests.oracles.stage_costs import equal_stages, no_limit

from dynapipe_hpc.plan.cluster import Link
from dynapipe_hpc.planner.cost.cost_model import FloatArray, StageCosts
from dynapipe_hpc.planner.schedule.cyclic import cyclic
from dynapipe_hpc.planner.schedule.one_f_one_b import one_f_one_b
from dynapipe_hpc.planner.schedule.schedule_rule import InfeasibleScheduleError, Schedule
from dynapipe_hpc.planner.schedule.simulate import simulate
from dynapipe_hpc.planner.schedule.text import parse_schedule
from dynapipe_hpc.planner.schedule.timeline import Timeline

CASES = Path(__file__).parents[4] / "shared" / "reference" / "schedule_conformance.json"
N_STAGES = 4
UNEVEN_MS = [1.688, 1.693, 1.225, 0.857, 0.486, 1.013, 1.054, 0.472, 0.478, 1.999]
UNIT_BYTES = 1000


def run(schedule: Schedule, costs: StageCosts, link: Link) -> Timeline:
    return simulate(schedule, costs, link, np.zeros(costs.n_stages))


def limit_of(n_units: float) -> FloatArray:
    return np.full(N_STAGES, n_units * UNIT_BYTES, np.float64)


def costs_of(case: dict[str, Any]) -> StageCosts:
    forward_ms = case.get("ts", [1.0] * case.get("M", 0))
    units = np.array(case.get("mem", [1] * len(forward_ms)))
    return equal_stages(forward_ms, N_STAGES, list(UNIT_BYTES * units))


def schedule_of(case: dict[str, Any], costs: StageCosts) -> Schedule:
    match case:
        case {"case": "A1F1B"} | {"sch": "1F1B"}:
            return one_f_one_b(costs, no_limit(costs))
        case {"sch": "fifo"}:  # not one of our rules, but its order can be simulated
            return parse_schedule("\n".join(case["res"]["order"]))
        case _:
            return cyclic(costs, limit_of(case.get("limit", np.inf)))


@pytest.mark.parametrize("full_duplex", [False, True])
def test_all_measured_cases_are_reproduced(full_duplex: bool) -> None:
    if not CASES.exists():
        pytest.skip(f"the measured cases are not here: {CASES} does not exist")
    cases = json.loads(CASES.read_text())
    assert len(cases) == 28
    for case in cases:
        costs = costs_of(case)
        schedule = schedule_of(case, costs)
        transfer_ms = 0.6 if case.get("comm_mb") else 0.0
        timeline = run(schedule, costs, Link(latency_ms=transfer_ms, full_duplex=full_duplex))
        assert schedule == parse_schedule("\n".join(case["res"]["order"])), case
        assert timeline.makespan_ms == pytest.approx(case["res"]["makespan_ms"], abs=1e-9), case
        assert timeline.peak_bytes.tolist() == case["res"]["peak_per_dev"], case


@pytest.mark.parametrize(
    ("n_microbatches", "limit", "makespan_ms"),
    [
        *[(8, 1, 96), (8, 2, 51), (8, 3, 45), (8, 4, 36), (8, 5, 36), (8, 6, 33), (8, 7, 33)],
        *[(16, 1, 192), (16, 2, 99), (16, 3, 87), (16, 4, 66), (16, 6, 57), (16, np.inf, 57)],
    ],
)
def test_cyclic_trades_memory_for_time(
    n_microbatches: int, limit: float, makespan_ms: float
) -> None:
    costs = equal_stages([1] * n_microbatches, N_STAGES, [UNIT_BYTES] * n_microbatches)
    timeline = run(cyclic(costs, limit_of(limit)), costs, Link(latency_ms=0))
    assert timeline.makespan_ms == makespan_ms
    assert timeline.peak_bytes.max() == min(limit, 7) * UNIT_BYTES


@pytest.mark.parametrize(("n_microbatches", "makespan_ms"), [(8, 33), (16, 57)])
def test_one_f_one_b_needs_a_microbatch_less_on_every_stage(
    n_microbatches: int, makespan_ms: float
) -> None:
    costs = equal_stages([1] * n_microbatches, N_STAGES)
    timeline = run(one_f_one_b(costs, no_limit(costs)), costs, Link(latency_ms=0))
    assert timeline.makespan_ms == makespan_ms
    assert timeline.peak_bytes.tolist() == [4, 3, 2, 1]


@pytest.mark.parametrize(("transfer_ms", "makespan_ms"), [(0.0, 52.281), (0.6, 59.481)])
def test_cyclic_with_uneven_times(transfer_ms: float, makespan_ms: float) -> None:
    costs = equal_stages(UNEVEN_MS, N_STAGES)
    timeline = run(cyclic(costs, no_limit(costs)), costs, Link(latency_ms=transfer_ms))
    assert timeline.makespan_ms == pytest.approx(makespan_ms, abs=1e-9)


def test_cyclic_with_uneven_memory() -> None:
    costs = equal_stages(UNEVEN_MS, N_STAGES, [1, 2, 1, 3, 1, 2, 4, 1, 1, 2])
    expected = dedent("""\
        F0 F1 F2 B0 B1 F3 B2 F4 B3 F5 B4 B5 F6 B6 F7 F8 F9 B7 B8 B9
        F0 F1 F2 B0 B1 B2 F3 F4 B3 B4 F5 B5 F6 B6 F7 F8 F9 B7 B8 B9
        F0 F1 F2 B0 B1 B2 F3 F4 B3 B4 F5 B5 F6 B6 F7 F8 F9 B7 B8 B9
        F0 B0 F1 B1 F2 B2 F3 B3 F4 B4 F5 B5 F6 B6 F7 B7 F8 B8 F9 B9""")
    assert cyclic(costs, np.full(N_STAGES, 4.0)) == parse_schedule(expected)


def test_deviation_the_first_microbatch_is_not_exempt_from_the_limit() -> None:
    # The published planner lets micro-batch 0 in whatever it needs: an out-of-memory by plan.
    costs = equal_stages([1, 1], N_STAGES, [2, 1])
    with pytest.raises(InfeasibleScheduleError, match="micro-batch 0 alone needs 2 bytes"):
        cyclic(costs, np.full(N_STAGES, 1.0))


def test_deviation_backward_needs_its_transient_memory() -> None:
    # Forgetting it, as the published planner does, orders passes that exceed the limit.
    costs = equal_stages([1] * 6, N_STAGES)
    real = replace(costs, backward_transient_bytes=np.ones((6, N_STAGES)))
    limit = np.full(N_STAGES, 3.0)
    forgetful = run(cyclic(costs, limit), real, Link())
    careful = run(cyclic(real, limit), real, Link())
    assert forgetful.peak_bytes.tolist() == [4, 4, 4, 2]
    assert careful.peak_bytes.tolist() == [3, 3, 3, 2]
