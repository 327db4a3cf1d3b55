"""Plans for a list of lengths, in one call."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from tests.examples.equal_shares import equal_shares
from tests.examples.length_samples import samples_of
from tests.examples.measured_layers import SHAPE, linear_table

from dynapipe_hpc.architecture.decoder import GptShape
from dynapipe_hpc.architecture.model_shape import ModelShape
from dynapipe_hpc.architecture.placement import Placement
from dynapipe_hpc.architecture.t5 import T5Shape
from dynapipe_hpc.data.errors import InputError
from dynapipe_hpc.plan.check import check_plans
from dynapipe_hpc.plan.cluster import Cluster, Link
from dynapipe_hpc.plan.text import grid
from dynapipe_hpc.planner.batch.config import DynamicConfig
from dynapipe_hpc.planner.config import PlannerConfig
from dynapipe_hpc.planner.cost.config import AnalyticConfig, ProfiledConfig
from dynapipe_hpc.planner.cost.from_config import read_cost_table
from dynapipe_hpc.planner.cost.table.profile_file import write_table
from dynapipe_hpc.planner.from_config import read_costs
from dynapipe_hpc.planner.make_plans import Planner
from dynapipe_hpc.planner.plan_iteration import plan_iteration
from dynapipe_hpc.planner.search.config import SearchConfig

GPT = GptShape(n_layers=4, hidden_size=64, n_heads=4, ffn_size=256, vocab_size=1000, max_tokens=512)
T5 = T5Shape.model_validate({**GPT.model_dump(exclude_defaults=True), "head_size": 16})
CLUSTER = Cluster(n_replicas=2, n_stages=2, device_memory_bytes="1GB")
EQUAL = equal_shares(GPT, CLUSTER)
LENGTHS = [12, 512, 37, 90, 33, 250, 8, 61]


def test_the_plans_are_those_of_a_configuration() -> None:
    cost = AnalyticConfig(recompute=("none", "selective", "full"))
    config = PlannerConfig(cost=cost, batch=DynamicConfig())
    planner = Planner.from_config(
        config, cost, GPT, EQUAL, cluster=CLUSTER, max_tokens=GPT.max_tokens
    )
    expected = planner.make_plans(0, samples_of(LENGTHS))
    assert plan_iteration(LENGTHS, GPT, CLUSTER) == expected


def test_packed_rows_may_be_longer_than_a_sample_may_be() -> None:
    batch = DynamicConfig(layouts=("packed",), token_multiple=1024)
    plans = plan_iteration(LENGTHS, GPT, CLUSTER, batch=batch)
    check_plans(plans)
    assert {m.row_tokens for p in plans for m in p.microbatches} == {1024}


def test_without_effort_the_best_batch_rule_is_taken() -> None:
    cost = AnalyticConfig(recompute=("none", "selective", "full"))
    config = PlannerConfig(cost=cost, batch=DynamicConfig(), search=SearchConfig(effort=0))
    planner = Planner.from_config(
        config, cost, GPT, EQUAL, cluster=CLUSTER, max_tokens=GPT.max_tokens
    )
    many = range(5, 500, 9)
    found = plan_iteration(many, GPT, CLUSTER, effort=0)
    assert found == planner.make_plans(0, samples_of(many))
    assert found != plan_iteration(many, GPT, CLUSTER)


def test_pairs_of_a_t5_have_rows_on_both_sides() -> None:
    plans = plan_iteration([(30, 5), (200, 40)], T5, CLUSTER)
    rows = {(m.row_tokens, m.target_tokens) for plan in plans for m in plan.microbatches}
    assert rows == {(32, 8), (200, 40)}
    assert grid(plan_iteration(np.array([(30, 5), (200, 40)]), T5, CLUSTER)) == grid(plans)


@pytest.mark.parametrize(
    ("lengths", "shape", "message"),
    [
        ([], GPT, "lengths is empty"),
        ([5, 0], GPT, r"lengths\[1\] is 0; a sample needs at least one token"),
        ([5, (3, 0)], GPT, r"lengths\[1\] is \(3, 0\); .* in a pair one target token"),
        ([5, (-1, 2)], GPT, r"lengths\[1\] is \(-1, 2\)"),
        ([5, 3], T5, r"lengths\[0\] is 5; an encoder-decoder model needs pairs"),
        ([5, 513], GPT, "sample 1 of 512 input .* model.max_tokens is 512; raise it"),
    ],
)
def test_lengths_that_no_plan_can_hold_are_refused(
    lengths: list[int | tuple[int, int]], shape: ModelShape, message: str
) -> None:
    with pytest.raises(InputError, match=message):
        plan_iteration(lengths, shape, CLUSTER)


def test_the_default_placement_is_equal_shares_and_another_changes_the_plan() -> None:
    found = plan_iteration(LENGTHS, GPT, CLUSTER)
    assert plan_iteration(LENGTHS, GPT, CLUSTER, placement=EQUAL) == found
    moved = plan_iteration(LENGTHS, GPT, CLUSTER, placement=Placement((3, 1)))
    assert moved[0].memory.static > found[0].memory.static
    assert moved[1].memory.static < found[1].memory.static


@pytest.mark.parametrize("counts", [(4,), (2, 1), (2, 3), (4, 0), (1, 1, 2)])
def test_a_placement_of_other_layers_or_stages_is_refused(counts: tuple[int, ...]) -> None:
    with pytest.raises(InputError, match=r"layers per stage are \(.*4 layers for 2 stages"):
        plan_iteration(LENGTHS, GPT, CLUSTER, placement=Placement(counts))


def test_a_cost_table_brings_its_link_and_the_modes_of_as_many_shards(tmp_path: Path) -> None:
    layers = {**linear_table("none").layers, **linear_table("full").layers}
    other = {key._replace(tensor_parallel=2, recompute="selective"): v for key, v in layers.items()}
    table = replace(linear_table(), layers={**layers, **other})
    path = tmp_path / "costs.h5"
    write_table(table, path)
    cluster = Cluster(n_stages=2, device_memory_bytes="1GB", link=Link(latency_ms=9))
    config = ProfiledConfig(path=path, recompute=("none", "full"))
    planner = Planner.from_config(
        PlannerConfig(cost=config, batch=DynamicConfig()),
        read_costs(config, SHAPE),
        SHAPE,
        equal_shares(SHAPE, cluster),
        cluster=cluster.model_copy(update={"link": table.link}),
        max_tokens=SHAPE.max_tokens,
    )
    lengths = [12, 60, 33, 20]
    costs = read_cost_table(str(path), SHAPE, cluster)
    assert costs.config == config
    expected = planner.make_plans(0, samples_of(lengths))
    assert plan_iteration(lengths, SHAPE, cluster, costs) == expected
