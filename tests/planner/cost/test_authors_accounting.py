"""Plans that the authors' planner made, run through this project's cost table and simulator."""

import json
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest
from tests.oracles.measured_layers import SHAPE, linear_layer, linear_table
from tests.oracles.shared_folder import shared_folder

from dynapipe_hpc.data.errors import InputError
from dynapipe_hpc.data.microbatch import Recompute
from dynapipe_hpc.plan.cluster import Cluster, Link
from dynapipe_hpc.plan.model_shape import ModelShape
from dynapipe_hpc.planner.cost.config import ProfiledConfig
from dynapipe_hpc.planner.cost.cost_model import FloatArray, Shapes, StageCosts
from dynapipe_hpc.planner.cost.import_csv import import_csv
from dynapipe_hpc.planner.cost.profile_table import ProfileTable
from dynapipe_hpc.planner.cost.profiled import ProfiledCost
from dynapipe_hpc.planner.schedule.config import RULES
from dynapipe_hpc.planner.schedule.simulate import simulate
from dynapipe_hpc.planner.schedule.timeline import Timeline

AUTHORS = ProfiledConfig(path=Path("costs.h5"), accounting="authors")
LINK = Link(latency_ms=0, bytes_per_ms=4800e9 / 8 / 1e3, full_duplex=False)
LIMIT_BYTES = 36_000_000_000
RULE_OF = {"wait-free-cyclic": RULES["cyclic"], "1F1B": RULES["1f1b"]}


class Published(NamedTuple):
    """A replica's plan."""

    config: Mapping[str, int]
    replica: Mapping[str, Any]


def published_plans() -> Iterator[Published]:
    path = shared_folder("reference") / "original_planner.json"
    for entry in json.loads(path.read_text(encoding="utf-8")):
        replicas = [replica for batch in entry["batches"] for replica in batch["replicas"]]
        if entry["input"].startswith("gpt"):
            yield from (Published(entry["config"], replica) for replica in replicas)


def shape_of(config: Mapping[str, int]) -> ModelShape:
    return ModelShape(
        n_layers=config["layers"],
        hidden_size=4096,
        n_heads=32,
        ffn_size=16384,
        vocab_size=50304,
        max_tokens=8192,
    )


@pytest.fixture(scope="module")
def a100() -> ProfileTable:
    path = shared_folder("profiles") / "a100_40gb_gpt_6.7b.csv"
    shape = shape_of({"layers": 16})
    return import_csv(path, path.with_name("a100_40gb_gpt_6.7b_parameters.csv"), shape)


def rerun(plan: Published, table: ProfileTable) -> Timeline:
    cluster = Cluster(
        n_replicas=plan.config["dp"], n_stages=plan.config["pp"], device_memory_bytes=LIMIT_BYTES
    )
    mode = Recompute.of(plan.replica["rc"])
    config = AUTHORS.model_copy(update={"recompute": (mode.text,)})
    cost = ProfiledCost(table, shape_of(plan.config), cluster, config)
    n_rows, row_tokens, _ = np.array(plan.replica["shapes"]).T.copy()
    costs = cost.stage_costs(Shapes.of_rows(n_rows, row_tokens), mode)
    timeline = scheduled(plan, costs, cost.static_bytes, np.full(costs.n_stages, np.inf))
    if timeline.peak_bytes.max() <= LIMIT_BYTES:
        return timeline
    return scheduled(plan, costs, cost.static_bytes, LIMIT_BYTES - cost.static_bytes)


def scheduled(
    plan: Published, costs: StageCosts, static_bytes: FloatArray, room_bytes: FloatArray
) -> Timeline:
    schedule = RULE_OF[plan.replica["schedule"]](costs, room_bytes, LINK)
    return simulate(schedule, costs, LINK, static_bytes)


def test_published_plans_take_as_long_here(a100: ProfileTable) -> None:
    plans = list(published_plans())
    assert len(plans) == 36
    found = [rerun(plan, a100).makespan_ms for plan in plans]
    assert found == pytest.approx([plan.replica["makespan_ms"] for plan in plans], rel=1e-3)


def test_published_plans_need_as_much_memory_here(a100: ProfileTable) -> None:
    plans = list(published_plans())
    found = [rerun(plan, a100).peak_bytes.max() / 1e6 for plan in plans]
    assert found == pytest.approx([plan.replica["peak_mem_mb"] for plan in plans], rel=1e-3)


def table_with_stack_peaks() -> ProfileTable:
    layer = linear_layer(1.0)
    return linear_table(layer=replace(layer, stack_peak_bytes=3.5 * layer.stored_bytes))


def test_a_stage_peaks_at_what_all_layers_but_one_store_and_the_peak_of_a_stack() -> None:
    cluster = Cluster(n_stages=3, device_memory_bytes=10**9)
    cost = ProfiledCost(table_with_stack_peaks(), SHAPE, cluster, AUTHORS)
    costs = cost.stage_costs(Shapes.of_rows(np.array([2]), np.array([32])))
    peak = costs.stored_bytes + costs.forward_transient_bytes
    assert peak.tolist() == [[640 * (2 - 1 + 3.5)] * 3]
    assert costs.backward_transient_bytes.tolist() == [[0.0] * 3]


def test_the_head_takes_time_but_no_memory_and_the_embedding_the_opposite() -> None:
    cluster = Cluster(n_stages=3, device_memory_bytes=10**9)
    cost = ProfiledCost(table_with_stack_peaks(), SHAPE, cluster, AUTHORS)
    assert cost.stage_costs(Shapes.of_rows(np.array([2]), np.array([32]))).forward_ms.tolist() == [
        [64 * 2.0, 64 * 2.0, 64 * 5.0]
    ]
    assert cost.static_bytes.tolist() == [4 * 400, 4 * 300, 4 * 300]
    assert cost.update_ms == 0


def test_replicas_share_the_state_of_the_optimizer() -> None:
    cluster = Cluster(n_replicas=2, n_stages=3, device_memory_bytes=10**9)
    cost = ProfiledCost(table_with_stack_peaks(), SHAPE, cluster, AUTHORS)
    assert cost.static_bytes.tolist() == [3 * 400, 3 * 300, 3 * 300]


def test_a_table_without_stack_peaks_cannot_be_counted_so() -> None:
    cluster = Cluster(n_stages=3, device_memory_bytes=10**9)
    with pytest.raises(
        InputError, match=r"costs.h5: has no stack_peak_bytes .* use a table of .*--from-csv"
    ):
        ProfiledCost(linear_table(), SHAPE, cluster, AUTHORS)
