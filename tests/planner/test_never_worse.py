"""A default plan is never worse than one that less would have found."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
from tests.examples.baselines import budget, naive
from tests.examples.equal_shares import equal_shares, rows_only
from tests.examples.linear_cost import linear_cost, samples_of
from tests.examples.measured_layers import SHAPE, T5_SHAPE, linear_t5_table, linear_table

from dynapipe_hpc.architecture.model_shape import ModelShape
from dynapipe_hpc.data.errors import InputError
from dynapipe_hpc.data.sample import Sample
from dynapipe_hpc.plan.cluster import Cluster
from dynapipe_hpc.planner.baselines.baseline import Baseline
from dynapipe_hpc.planner.baselines.config import BaselineConfig
from dynapipe_hpc.planner.batch.config import DynamicConfig, RecomputeChoice
from dynapipe_hpc.planner.choose.choice import Chooser
from dynapipe_hpc.planner.choose.config import SearchConfig
from dynapipe_hpc.planner.cost.config import ProfiledConfig
from dynapipe_hpc.planner.cost.cost_model import CostModel
from dynapipe_hpc.planner.cost.profiled import profiled_cost
from dynapipe_hpc.planner.cost.table.profile_table import LayerProfile, UpdateProfile
from dynapipe_hpc.planner.from_config import dynamic_chooser
from dynapipe_hpc.planner.make_plans import Planner
from dynapipe_hpc.planner.schedule.config import ScheduleConfig
from dynapipe_hpc.planner.schedule.one_f_one_b import one_f_one_b
from dynapipe_hpc.planner.schedule.pipeline import Pipeline, schedule_pipeline
from dynapipe_hpc.planner.schedule.rules import schedule_rules
from dynapipe_hpc.planner.schedule.simulate import iteration_ms

AMPLE_BYTES = 10**8
NEAR_ENOUGH = 1.02


@dataclass(frozen=True)
class Case:
    """A batch, and what it is planned for."""

    samples: Sequence[Sample]
    cost: CostModel
    n_replicas: int = 1
    memory_bytes: int = AMPLE_BYTES

    @property
    def cluster(self) -> Cluster:
        return Cluster(
            n_replicas=self.n_replicas,
            n_stages=len(self.cost.static_bytes),
            device_memory_bytes=self.memory_bytes,
        )

    def planner(
        self, effort: int = SearchConfig().effort, choice: RecomputeChoice = "per_microbatch"
    ) -> Planner:
        batch, search = DynamicConfig(recompute_choice=choice), SearchConfig(effort=effort)
        rules = schedule_rules(ScheduleConfig())
        return self.planner_with(
            dynamic_chooser(batch, search, rules, cost=self.cost, cluster=self.cluster)
        )

    def planner_by(self, config: BaselineConfig) -> Planner:
        rules = schedule_rules(ScheduleConfig())
        return self.planner_with(Baseline(config, rules, self.cost, self.cluster))

    def planner_with(self, chooser: Chooser) -> Planner:
        return Planner(chooser, self.cost, self.cluster, 8, rows_only(self.cluster))


def linear(n_stages: int) -> CostModel:
    """The last stage is the slowest, as the one with the head of a model is."""
    token_ms = (0.02,) * (n_stages - 1) + (0.025,)
    return linear_cost((1.0,) * n_stages, token_ms, recomputes=True)


def noisy(shape: ModelShape, n_stages: int, seed: int) -> CostModel:
    """A cost table with every time multiplied by 0.5 to 1.5, drawn anew."""
    random = np.random.default_rng(seed)
    table_of = linear_t5_table if shape.has_target_rows else linear_table

    def spoiled(layer: LayerProfile) -> LayerProfile:
        forward_ms, backward_ms = (
            ms * random.uniform(0.5, 1.5, ms.shape) for ms in (layer.forward_ms, layer.backward_ms)
        )
        return replace(layer, forward_ms=forward_ms, backward_ms=backward_ms)

    layers = {
        key: spoiled(layer)
        for mode in ("none", "full")
        for key, layer in table_of(mode).layers.items()
    }
    table = replace(table_of(), layers=layers, update=UpdateProfile())
    cluster = Cluster(n_stages=n_stages, device_memory_bytes=AMPLE_BYTES)
    config = ProfiledConfig(path=Path("unused.h5"), recompute=("none", "full"))
    return profiled_cost(table, shape, equal_shares(shape, cluster), cluster, config=config)


RANDOM = np.random.default_rng(5)
UNIFORM = samples_of(RANDOM.integers(1, 512, 24).tolist())
FLAN_LIKE = samples_of(RANDOM.lognormal(4, 1, 60).clip(2, 512).astype(int).tolist())
SHORT = samples_of(RANDOM.integers(2, 65, 24).tolist())
ZIPF = samples_of(min(8 * int(n), 512) for n in np.random.default_rng(5).zipf(1.5, 100))
PAIRS = [Sample(0, 54, 12), Sample(1, 7, 55), Sample(2, 3, 35)]
MANY_PAIRS = [Sample(i, s.input_tokens, UNIFORM[-i].input_tokens) for i, s in enumerate(UNIFORM)]
GIANT = samples_of([512] + [8] * 150)
CONSTANT = samples_of([64] * 48)
FEW = samples_of(
    np.fromstring(
        "52 314 380 21 40 168 108 145 63 357 323 158 458 236 62 214 56 357 141 123 75 503 127 96 "
        "104 252 213 224",
        dtype=int,
        sep=" ",
    ).tolist()
)
CASES = {
    "constant, 16 stages": Case(CONSTANT, linear(16)),
    "constant, 16 stages, 2 replicas": Case(CONSTANT, linear(16), 2),
    "constant, 8 stages, 8 replicas": Case(CONSTANT, linear(8), 8),
    "one giant, 16 stages, memory for little more": Case(GIANT, linear(16), 1, 1129),
    "one giant, 8 stages, memory for little more": Case(GIANT, linear(8), 1, 1129),
    "all ones, 8 stages, memory for two": Case(samples_of([1] * 100), linear(8), 1, 53),
    "all ones, 16 stages, 2 replicas": Case(samples_of([1] * 100), linear(16), 2),
    "500 ones, 4 stages, 8 replicas": Case(samples_of([1] * 500), linear(4), 8),
    "uniform, 16 stages, memory for two": Case(UNIFORM, linear(16), 1, 3327),
    "uniform, 8 stages, 2 replicas, memory for two": Case(UNIFORM, linear(8), 2, 3327),
    "Zipf, 8 stages": Case(ZIPF, linear(8)),
    "Zipf, 16 stages": Case(ZIPF, linear(16)),
    "FLAN-like, 8 stages, memory for little more": Case(FLAN_LIKE, linear(8), 1, 1129),
    "noisy table, 2 stages": Case(SHORT, noisy(SHAPE, 2, seed=3)),
    "noisy table, 3 stages, 2 replicas": Case(SHORT, noisy(SHAPE, 3, seed=12), 2),
    "noisy table, three pairs, 2 replicas": Case(PAIRS, noisy(T5_SHAPE, 2, seed=5), 2),
    "few, of which the worse plan was refined to the better": Case(FEW, linear(8), 2),
}


def predicted_ms(planner: Planner, pipelines: Sequence[Pipeline]) -> float:
    return iteration_ms([pipeline.timeline for pipeline in pipelines], planner.cost)


def planned_ms(planner: Planner, samples: Sequence[Sample]) -> float:
    """Infinite if there is no plan."""
    try:
        return predicted_ms(planner, planner.choose(samples).pipelines)
    except InputError:
        return np.inf


def one_f_one_b_ms(planner: Planner, pipelines: Sequence[Pipeline]) -> float:
    """Of the same micro-batches; infinite if 1F1B has no room for them."""
    try:
        strict = [
            schedule_pipeline(p.microbatches, planner.cost, planner.cluster, [one_f_one_b])
            for p in pipelines
        ]
    except InputError:
        return np.inf
    return predicted_ms(planner, strict)


@pytest.mark.parametrize("name", CASES)
def test_no_restriction_of_the_default_search_gives_a_better_plan(name: str) -> None:
    case = CASES[name]
    planner, samples = case.planner(), case.samples
    effort = SearchConfig().effort
    pipelines = planner.choose(samples).pipelines
    found_ms = predicted_ms(planner, pipelines)
    restricted = {
        "no search": case.planner(0),
        "best of the modes": case.planner(choice="per_iteration"),
        "half the effort": case.planner(effort // 2),
        "naive padding": case.planner_by(naive(1)),
        "token budget": case.planner_by(budget(512)),
    }
    others_ms = {name: planned_ms(other, samples) for name, other in restricted.items()}
    others_ms["1F1B"] = one_f_one_b_ms(planner, pipelines)
    double_ms = planned_ms(case.planner(2 * effort), samples)
    # One mode for all is searched along another path, and was seen to be 1.0 % shorter at most.
    limits_ms = dict.fromkeys(others_ms, found_ms) | {"best of the modes": found_ms / NEAR_ENOUGH}
    assert {name: ms for name, ms in others_ms.items() if ms < limits_ms[name]} == {}
    assert double_ms <= found_ms


@pytest.mark.parametrize("recomputes", [False, True], ids=["one mode", "modes"])
@pytest.mark.parametrize("n_replicas", [1, 2])
@pytest.mark.parametrize("samples", [UNIFORM, MANY_PAIRS], ids=["one side", "pairs"])
def test_all_plans_that_less_effort_compares_are_among_those_of_more(
    samples: Sequence[Sample], n_replicas: int, recomputes: bool
) -> None:
    has_targets = samples is MANY_PAIRS
    cost = linear_cost(
        (1.0, 2.0, 1.0), (0.02, 0.03, 0.025), recomputes=recomputes, has_targets=has_targets
    )
    case = Case(samples, cost, n_replicas)
    compared = [
        {c.iteration_ms for c in case.planner(effort).choose(samples).candidates}
        for effort in (3_000, 6_250, 12_500, 25_000, 50_000, 100_000)
    ]
    for less, more in pairwise(compared):
        assert less <= more
    assert len(compared[0]) < len(compared[-1])
