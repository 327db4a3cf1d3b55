"""Plans that the authors' planner made, run through this project's cost table and simulator."""

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.examples.a100_tables import Family
from tests.examples.decoder_shapes import decoder_shapes
from tests.examples.equal_shares import equal_shares
from tests.examples.measured_layers import SHAPE, linear_layer, linear_table
from tests.examples.published_plans import LINK, Published, published_plans

from dynapipe_hpc.data.errors import InputError
from dynapipe_hpc.data.microbatch import Recompute
from dynapipe_hpc.plan.cluster import Cluster
from dynapipe_hpc.planner.batch.memory import activation_room_bytes
from dynapipe_hpc.planner.cost.authors_accounting import AUTHORS
from dynapipe_hpc.planner.cost.config import ProfiledConfig
from dynapipe_hpc.planner.cost.cost_model import CostModel, FloatArray, Shapes, StageCosts
from dynapipe_hpc.planner.cost.profiled import profiled_cost
from dynapipe_hpc.planner.cost.table.profile_table import ProfileTable
from dynapipe_hpc.planner.from_config import RULES
from dynapipe_hpc.planner.schedule.schedule_rule import ScheduleRule
from dynapipe_hpc.planner.schedule.simulate import simulate
from dynapipe_hpc.planner.schedule.timeline import Timeline

CONFIG = ProfiledConfig(path=Path("costs.h5"))
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


@pytest.mark.parametrize(("family", "n_plans"), [("gpt", 36), ("t5", 2)])
def test_published_plans_take_as_long_and_need_as_much_memory_here(
    family: Family, n_plans: int
) -> None:
    plans = [(batch, replica) for batch in published_plans(family) for replica in batch.replicas]
    assert len(plans) == n_plans
    for batch, replica in plans:
        timeline = rerun(batch, replica)
        assert timeline.makespan_ms == pytest.approx(replica["makespan_ms"], rel=2e-6)
        peak_mb = timeline.peak_bytes.max() / 1e6
        assert peak_mb == pytest.approx(replica["peak_mem_mb"], rel=1e-4)


def table_with_stack_peaks() -> ProfileTable:
    layer = linear_layer(1.0)
    return linear_table(layer=replace(layer, stack_peak_bytes=3.5 * layer.stored_bytes))


def cost_of(table: ProfileTable, cluster: Cluster) -> CostModel:
    return profiled_cost(
        table, SHAPE, equal_shares(SHAPE, cluster), cluster, config=CONFIG, accounting=AUTHORS
    )


def test_a_stage_peaks_at_what_all_layers_but_one_store_and_the_peak_of_a_stack() -> None:
    cluster = Cluster(n_stages=3, device_memory_bytes=10**9)
    cost = cost_of(table_with_stack_peaks(), cluster)
    costs = cost.stage_costs(decoder_shapes(np.array([2]), np.array([32])))
    peak = costs.stored_bytes + costs.forward_transient_bytes
    assert peak.tolist() == [[640 * (2 - 1 + 3.5)] * 3]
    assert costs.backward_transient_bytes.tolist() == [[0.0] * 3]


def test_the_head_takes_time_but_no_memory_and_the_embedding_the_opposite() -> None:
    cluster = Cluster(n_stages=3, device_memory_bytes=10**9)
    cost = cost_of(table_with_stack_peaks(), cluster)
    assert cost.stage_costs(decoder_shapes(np.array([2]), np.array([32]))).forward_ms.tolist() == [
        [64 * 2.0, 64 * 2.0, 64 * 5.0]
    ]
    assert cost.static_bytes.tolist() == [4 * 400, 4 * 300, 4 * 300]
    assert cost.reduce_ms.tolist() == [0, 0, 0]
    assert cost.step_ms == 0


def test_replicas_share_the_state_of_the_optimizer() -> None:
    cluster = Cluster(n_replicas=2, n_stages=3, device_memory_bytes=10**9)
    cost = cost_of(table_with_stack_peaks(), cluster)
    assert cost.static_bytes.tolist() == [3 * 400, 3 * 300, 3 * 300]


def test_a_table_without_stack_peaks_cannot_be_counted_so() -> None:
    cluster = Cluster(n_stages=3, device_memory_bytes=10**9)
    with pytest.raises(
        InputError, match=r"costs.h5: has no stack_peak_bytes .* use a table of .*--from-csv"
    ):
        cost_of(linear_table(), cluster)
