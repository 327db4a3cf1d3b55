"""The schedules of the published planner: its orders, makespans and peaks.

`published_schedules.json` holds them and names their source. Passes take t and 2t ms on every
stage and keep a unit of memory or a multiple. Where memory is scarce the published planner knows
one number for all stages, and no transient memory. Transfers were found to take 0.6 ms: with
that, all cases that have them agree.
"""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.examples.schedule_text import parse_schedule
from tests.examples.stage_costs import equal_stages, no_limit, with_columns

from dynapipe_hpc.plan.cluster import Link
from dynapipe_hpc.planner.cost.cost_model import FloatArray, StageCosts
from dynapipe_hpc.planner.schedule.cyclic import cyclic
from dynapipe_hpc.planner.schedule.one_f_one_b import one_f_one_b
from dynapipe_hpc.planner.schedule.schedule_rule import Schedule
from dynapipe_hpc.planner.schedule.simulate import simulate
from dynapipe_hpc.planner.schedule.timeline import Timeline

CASES = json.loads(Path(__file__).with_name("published_schedules.json").read_text())["cases"]
TRANSFER_MS = 0.6
N_STAGES = 4
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


def test_deviation_backward_needs_its_transient_memory() -> None:
    # Forgetting it, as the published planner does, orders passes that exceed the limit.
    costs = equal_stages([1] * 6, N_STAGES)
    real = with_columns(costs, backward_transient_bytes=np.ones((6, N_STAGES)))
    limit = np.full(N_STAGES, 3.0)
    forgetful = run(cyclic(costs, limit), real, Link())
    careful = run(cyclic(real, limit), real, Link())
    assert forgetful.peak_bytes.tolist() == [4, 4, 4, 2]
    assert careful.peak_bytes.tolist() == [3, 3, 3, 2]
