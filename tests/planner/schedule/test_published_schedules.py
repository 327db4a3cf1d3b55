"""The schedules of the published planner: its orders, makespans and peaks.

`published_schedules.json` holds them and names their source. Passes take t and 2t ms on every
stage and keep a unit of memory or a multiple. Where memory is scarce the published planner knows
one number for all stages, and no transient memory. Transfers were found to take 0.6 ms: with
that, all cases that have them agree.
"""

import json
from pathlib import Path
from textwrap import dedent
from typing import Any

import numpy as np
import pytest
from tests.examples.schedule_text import parse_schedule
from tests.examples.stage_costs import equal_stages, no_limit, with_columns

from dynapipe_hpc.plan.cluster import Link
from dynapipe_hpc.planner.cost.cost_model import FloatArray, StageCosts
from dynapipe_hpc.planner.schedule.cyclic import cyclic
from dynapipe_hpc.planner.schedule.one_f_one_b import one_f_one_b
from dynapipe_hpc.planner.schedule.schedule_rule import InfeasibleScheduleError, Schedule
from dynapipe_hpc.planner.schedule.simulate import simulate
from dynapipe_hpc.planner.schedule.timeline import Timeline

CASES = json.loads(Path(__file__).with_name("published_schedules.json").read_text())["cases"]
TRANSFER_MS = 0.6
N_STAGES = 4
UNEVEN_MS = [1.688, 1.693, 1.225, 0.857, 0.486, 1.013, 1.054, 0.472, 0.478, 1.999]
UNIT_BYTES = 1000


def run(schedule: Schedule, costs: StageCosts, link: Link) -> Timeline:
    return simulate(schedule, costs, link, np.zeros(costs.n_stages))


def limit_of(n_units: float) -> FloatArray:
    return np.full(N_STAGES, n_units * UNIT_BYTES, np.float64)


def costs_of(case: dict[str, Any]) -> StageCosts:
    stored_bytes = [UNIT_BYTES * units for units in case["stored_units"]]
    return equal_stages(case["forward_ms"], N_STAGES, stored_bytes)


def schedule_of(case: dict[str, Any], costs: StageCosts) -> Schedule:
    match case["rule"]:
        case "1f1b":
            return one_f_one_b(costs, no_limit(costs))
        case "cyclic":
            return cyclic(costs, limit_of(case["limit_units"] or np.inf))
        case _:  # "fifo" is not one of our rules, but its order can be simulated
            return parse_schedule("\n".join(case["orders"]))


def named(case: dict[str, Any]) -> str:
    limit = case["limit_units"] or "none"
    transfers = "-transfers" if case["with_transfers"] else ""
    return f"{case['rule']}-{len(case['forward_ms'])}-limit-{limit}{transfers}"


@pytest.mark.parametrize("full_duplex", [False, True])
@pytest.mark.parametrize("case", CASES, ids=named)
def test_a_published_schedule_is_reproduced(case: dict[str, Any], full_duplex: bool) -> None:
    costs = costs_of(case)
    schedule = schedule_of(case, costs)
    link = Link(latency_ms=case["with_transfers"] * TRANSFER_MS, full_duplex=full_duplex)
    timeline = run(schedule, costs, link)
    assert schedule == parse_schedule("\n".join(case["orders"]))
    assert timeline.makespan_ms == pytest.approx(case["makespan_ms"], abs=1e-9)
    assert timeline.peak_bytes.tolist() == [UNIT_BYTES * units for units in case["peak_units"]]


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
    real = with_columns(costs, backward_transient_bytes=np.ones((6, N_STAGES)))
    limit = np.full(N_STAGES, 3.0)
    forgetful = run(cyclic(costs, limit), real, Link())
    careful = run(cyclic(real, limit), real, Link())
    assert forgetful.peak_bytes.tolist() == [4, 4, 4, 2]
    assert careful.peak_bytes.tolist() == [3, 3, 3, 2]
