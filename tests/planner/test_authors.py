"""The baseline against the plans that the authors' planner made."""

import json
from collections.abc import Sequence
from itertools import permutations
from pathlib import Path
from statistics import geometric_mean
from typing import Any, NamedTuple

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.oracles.length_samples import samples_of
from tests.oracles.linear_cost import LinearCost
from tests.oracles.shared_folder import shared_folder

from dynapipe_hpc.data.microbatch import MicroBatch, Recompute
from dynapipe_hpc.data.sample import Sample
from dynapipe_hpc.plan.check import check_plans
from dynapipe_hpc.plan.cluster import Cluster, Link
from dynapipe_hpc.plan.memory import peak_bytes
from dynapipe_hpc.plan.model_shape import ModelShape
from dynapipe_hpc.planner.authors import AuthorsPlanner
from dynapipe_hpc.planner.batch.config import AuthorsConfig
from dynapipe_hpc.planner.batch.objective import bottleneck_ms
from dynapipe_hpc.planner.batch.order import order_samples
from dynapipe_hpc.planner.batch.replicas import TooFewMicroBatchesError, balance_replicas
from dynapipe_hpc.planner.batch.row_length import padded
from dynapipe_hpc.planner.config import PlannerConfig
from dynapipe_hpc.planner.cost.config import ProfiledConfig
from dynapipe_hpc.planner.cost.cost_model import CostModel, Shapes
from dynapipe_hpc.planner.cost.import_csv import import_csv
from dynapipe_hpc.planner.cost.profiled import ProfiledCost
from dynapipe_hpc.planner.make_plans import Planner

LINK = Link(latency_ms=0, bytes_per_ms=4800e9 / 8 / 1e3, full_duplex=False)
ALL_MODES = ProfiledConfig(
    path=Path("costs.h5"), recompute=("none", "selective", "full"), accounting="authors"
)
BASELINE = AuthorsPlanner.of(AuthorsConfig(rule="authors"))


class Published(NamedTuple):
    """A batch, what plans it here, and the authors' plan."""

    samples: list[Sample]
    cost: CostModel
    cluster: Cluster
    plan: dict[str, Any]

    def sizes(self, microbatches: Sequence[MicroBatch]) -> list[tuple[int, int]]:
        """Rows and their length, which the authors make a token shorter than the samples."""
        tokens = {sample.sample_id: sample.tokens for sample in self.samples}
        longest = (max(tokens[i] for i in m.sample_ids) for m in microbatches)
        return [(m.n_rows, padded(n - 1)) for m, n in zip(microbatches, longest, strict=True)]


@pytest.fixture(scope="module")
def published() -> list[Published]:
    folder = shared_folder("reference").parent
    entries = json.loads((folder / "reference" / "original_planner.json").read_text())
    return [
        case
        for entry in entries
        if entry["input"].startswith("gpt")
        for case in cases(folder, entry)
    ]


def cases(folder: Path, entry: dict[str, Any]) -> list[Published]:
    config = entry["config"]
    shape = ModelShape(
        n_layers=config["layers"],
        hidden_size=4096,
        n_heads=32,
        ffn_size=16384,
        vocab_size=50304,
        max_tokens=8192,
    )
    cluster = Cluster(
        n_replicas=config["dp"],
        n_stages=config["pp"],
        device_memory_bytes=config["device_memory_limit_mb"] * 1_000_000,
        link=LINK,
    )
    profile = folder / "profiles" / "a100_40gb_gpt_6.7b.csv"
    table = import_csv(profile, profile.with_name("a100_40gb_gpt_6.7b_parameters.csv"), shape)
    cost = ProfiledCost(table, shape, cluster, ALL_MODES)
    lengths = json.loads((folder / "lengths" / f"{entry['input']}.json").read_text())["batches"]
    plans = entry["batches"]
    return [
        Published(samples_of(batch), cost, cluster, plan)
        for batch, plan in zip(lengths, plans, strict=True)
    ]


def test_the_objective_is_the_published_one(published: list[Published]) -> None:
    assert len(published) == 24
    for case in published:
        found = BASELINE.batches.cut(order_samples(case.samples), case.cost, case.cluster)
        assert found is not None
        assert found[0].objective_ms == pytest.approx(case.plan["dp_objective_ms"], rel=2e-7)


def test_micro_batches_are_the_published_ones(published: list[Published]) -> None:
    different = 0
    for case in published:
        found = case.sizes(BASELINE.batches(case.samples, case.cost, case.cluster))
        replicas = case.plan["replicas"]
        theirs = [(rows, tokens) for r in replicas for rows, tokens, _ in r["shapes"]]
        assert len(found) == len(theirs)
        different += sorted(found) != sorted(theirs)
    assert different <= 1  # of 24; there the same objective is reached in another way


def test_replicas_have_the_published_work(published: list[Published]) -> None:
    # Micro-batches of equal time, which may be on either replica, differ a little where their
    # rows are a token shorter.
    for case in published:
        microbatches = BASELINE.batches(case.samples, case.cost, case.cluster)
        replicas = balance_replicas(microbatches, case.cost, case.cluster.n_replicas)
        shares = [[microbatches[i] for i in replica] for replica in replicas]
        theirs = case.plan["replicas"]
        assert any(
            all(has_work(case, share, plan) for share, plan in zip(order, theirs, strict=True))
            for order in permutations(shares)
        )


def has_work(case: Published, microbatches: Sequence[MicroBatch], plan: dict[str, Any]) -> bool:
    """Whether micro-batches take as long as those of a published replica, in its mode."""
    n_rows, row_tokens = np.array(case.sizes(microbatches)).T.copy()
    shapes = Shapes.of_rows(n_rows, row_tokens)
    work_ms = bottleneck_ms(case.cost.stage_costs(shapes, Recompute.of(plan["rc"])))
    sum_ms, max_ms = work_ms.sum(), work_ms.max()
    eq1_ms = (case.cluster.n_stages - 1) * max_ms + sum_ms
    expected = [plan["sum_t_ms"], plan["max_t_ms"], plan["eq1_ms"]]
    return [sum_ms, max_ms, eq1_ms] == pytest.approx(expected, rel=1e-4)


def test_iterations_take_as_long_as_published(published: list[Published]) -> None:
    ratios = []
    for case in published:
        choice = BASELINE.choose(case.samples, case.cost, case.cluster)
        ratios.append(choice.best.makespan_ms / case.plan["predicted_iteration_ms"])
    assert geometric_mean(ratios) == pytest.approx(1, abs=0.015)
    assert max(abs(ratio - 1) for ratio in ratios) < 0.04  # theirs is drawn without a seed


@given(
    st.lists(st.integers(1, 200), min_size=2, max_size=30),
    st.integers(1, 3),
    st.integers(1, 2),
    st.integers(600, 5000),
)
def test_plans_run_every_sample_once_within_memory(
    lengths: list[int], n_stages: int, n_replicas: int, memory_bytes: int
) -> None:
    cluster = Cluster(n_replicas=n_replicas, n_stages=n_stages, device_memory_bytes=memory_bytes)
    cost = LinearCost((1.0,) * n_stages, (0.01,) * n_stages, recomputes=True)
    exact = AuthorsPlanner.of(AuthorsConfig(rule="authors", interval_ms=0))
    planner = Planner(cost, cluster, 8, [], [], authors=exact)
    samples = samples_of(lengths)
    try:
        plans = planner.make_plans(0, samples)
    except TooFewMicroBatchesError:
        assert len(exact.batches(samples, cost, cluster)) < n_replicas
        return
    check_plans(plans)
    assert max(peak_bytes(plan) for plan in plans) <= memory_bytes
    run = [i for p in plans if p.stage == 0 for m in p.microbatches for i in m.sample_ids]
    assert sorted(run) == list(range(len(lengths)))


def test_a_configuration_asks_for_it() -> None:
    config = PlannerConfig.model_validate(
        {
            "cost": {"kind": "analytic"},
            "batch": {"rule": "authors", "interval_ms": 0.005, "seed": 3},
        }
    )
    shape = ModelShape(
        n_layers=2, hidden_size=8, n_heads=2, ffn_size=16, vocab_size=32, max_tokens=64
    )
    cluster = Cluster(n_stages=2, device_memory_bytes=10**9)
    choice = Planner.of(config, shape, cluster, 64).choose(samples_of([64, 8, 30]))
    assert [candidate.way for candidate in choice.candidates] == ["authors, limits 0.005 ms apart"]
