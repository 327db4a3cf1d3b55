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


def published_plans(family: str) -> Iterator[Published]:
    path = shared_folder("reference") / "original_planner.json"
    for entry in json.loads(path.read_text(encoding="utf-8")):
        replicas = [replica for batch in entry["batches"] for replica in batch["replicas"]]
        if entry["input"].startswith(family):
            yield from (Published(entry["config"], replica) for replica in replicas)


def gpt_of(config: Mapping[str, int]) -> ModelShape:
    return ModelShape(
        n_layers=config["layers"],
        hidden_size=4096,
        n_heads=32,
        ffn_size=16384,
        vocab_size=50304,
        max_tokens=8192,
    )


def t5_of(config: Mapping[str, int]) -> ModelShape:
    return ModelShape(
        family="t5",
        n_layers=config["layers"],
        hidden_size=1024,
        n_heads=128,
        head_size=128,
        ffn_size=65536,
        vocab_size=32128,
        max_tokens=8192,
    )


FAMILIES = {"gpt": ("a100_40gb_gpt_6.7b", gpt_of, 36), "t5": ("a100_40gb_t5_11b", t5_of, 2)}


def imported(family: str, layers: int) -> ProfileTable:
    name, shape_of, _ = FAMILIES[family]
    path = shared_folder("profiles") / f"{name}.csv"
    return import_csv(path, path.with_stem(f"{name}_parameters"), shape_of({"layers": layers}))


@pytest.fixture(scope="module", params=list(FAMILIES))
def reruns(request: pytest.FixtureRequest) -> list[tuple[Published, Timeline]]:
    family: str = request.param
    table, (_, shape_of, n_plans) = imported(family, 16), FAMILIES[family]
    plans = list(published_plans(family))
    assert len(plans) == n_plans
    return [(plan, rerun(plan, table, shape_of(plan.config))) for plan in plans]


def rerun(plan: Published, table: ProfileTable, shape: ModelShape) -> Timeline:
    cluster = Cluster(
        n_replicas=plan.config["dp"], n_stages=plan.config["pp"], device_memory_bytes=LIMIT_BYTES
    )
    mode = Recompute.of(plan.replica["rc"])
    settings = {"recompute": (mode.text,), "tensor_parallel": plan.config["tp"]}
    cost = ProfiledCost(table, shape, cluster, AUTHORS.model_copy(update=settings))
    costs = cost.stage_costs(Shapes(*np.array(plan.replica["shapes"]).T.copy()), mode)
    timeline = scheduled(plan, costs, cost.static_bytes, np.full(costs.n_stages, np.inf))
    if timeline.peak_bytes.max() <= LIMIT_BYTES:
        return timeline
    return scheduled(plan, costs, cost.static_bytes, LIMIT_BYTES - cost.static_bytes)


def scheduled(
    plan: Published, costs: StageCosts, static_bytes: FloatArray, room_bytes: FloatArray
) -> Timeline:
    schedule = RULE_OF[plan.replica["schedule"]](costs, room_bytes, LINK)
    return simulate(schedule, costs, LINK, static_bytes)


Reruns = list[tuple[Published, Timeline]]


def test_published_plans_take_as_long_here(reruns: Reruns) -> None:
    published = [plan.replica["makespan_ms"] for plan, _ in reruns]
    assert [rerun.makespan_ms for _, rerun in reruns] == pytest.approx(published, rel=3e-5)


def test_published_plans_need_as_much_memory_here(reruns: Reruns) -> None:
    published = [1e6 * plan.replica["peak_mem_mb"] for plan, _ in reruns]
    assert [rerun.peak_bytes.max() for _, rerun in reruns] == pytest.approx(published, rel=3e-5)


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
