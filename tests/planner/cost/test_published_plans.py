"""Plans that the authors' planner made, run through this project's cost table and simulator."""

from collections.abc import Mapping
from typing import Any

import numpy as np
import pytest
from tests.examples.a100_tables import Family
from tests.examples.published_plans import LINK, Published, published_plans, static_share

from dynapipe_hpc.data.microbatch import Recompute
from dynapipe_hpc.planner.batch.memory import activation_room_bytes
from dynapipe_hpc.planner.cost.cost_model import FloatArray, Shapes, StageCosts
from dynapipe_hpc.planner.from_config import RULES
from dynapipe_hpc.planner.schedule.schedule_rule import ScheduleRule
from dynapipe_hpc.planner.schedule.simulate import simulate
from dynapipe_hpc.planner.schedule.timeline import Timeline

RULE_OF = {"wait-free-cyclic": RULES["cyclic"], "1F1B": RULES["1f1b"]}


def rerun(batch: Published, replica: Mapping[str, Any]) -> Timeline:
    sizes = np.array(replica["shapes"]).T.copy()
    costs = batch.cost.stage_costs(Shapes.padded(*sizes), Recompute.from_text(replica["rc"]))
    rule = RULE_OF[replica["schedule"]]
    timeline = scheduled(batch, rule, costs, np.full(costs.n_stages, np.inf))
    if timeline.peak_bytes.max() <= batch.cluster.device_memory_bytes:
        return timeline
    return scheduled(batch, rule, costs, activation_room_bytes(batch.cost, batch.cluster))


def scheduled(
    batch: Published, rule: ScheduleRule, costs: StageCosts, room_bytes: FloatArray
) -> Timeline:
    schedule = rule(costs, room_bytes, LINK)
    return simulate(schedule, costs, LINK, batch.cost.static_bytes)


@pytest.mark.parametrize(
    ("family", "n_plans", "rel"),
    # A T5 shares its embedding here, and theirs has one for each side.
    [("gpt", 36, 1e-4), ("t5", 2, 5e-3)],
)
def test_published_plans_take_as_long_and_need_as_much_memory_here(
    family: Family, n_plans: int, rel: float
) -> None:
    plans = [(batch, replica) for batch in published_plans(family) for replica in batch.replicas]
    assert len(plans) == n_plans
    for batch, replica in plans:
        timeline = rerun(batch, replica)
        assert timeline.makespan_ms == pytest.approx(replica["makespan_ms"], rel=2e-6)
        less = (1 - static_share(batch.cluster)) * batch.cost.static_bytes
        peak_mb = (timeline.peak_bytes - less).max() / 1e6
        assert peak_mb == pytest.approx(replica["peak_mem_mb"], rel=rel)
