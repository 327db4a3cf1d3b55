"""Studies: predictions of variants, of a grid of them, and simulations of whole runs."""

import json
import re
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from tests.examples.linear_cost import naive
from tests.examples.tokenized import write_samples
from tests.jobs.tiny_experiment import tiny_experiment

from dynapipe_hpc.cli.main import main
from dynapipe_hpc.data.errors import InputError, RunError
from dynapipe_hpc.experiment.config import ExperimentConfig
from dynapipe_hpc.experiment.experiment import Experiment
from dynapipe_hpc.experiment.load import load_config, to_toml
from dynapipe_hpc.experiment.study.predict import (
    ROWS,
    Outcome,
    PlannedIteration,
    Variant,
    grid,
    predict,
    real_shares,
    variants,
)
from dynapipe_hpc.experiment.study.simulate import simulate
from dynapipe_hpc.job.ranks import Alone
from dynapipe_hpc.plan.cluster import Cluster
from dynapipe_hpc.planner.baselines.baseline import Baseline
from dynapipe_hpc.planner.choose.choice import Chooser
from dynapipe_hpc.planner.cost.cost_model import CostModel
from dynapipe_hpc.planner.schedule.rules import one_f_one_b

TUNED_LENGTHS = (3, 30, 7, 12, 20, 5, 9, 28, 2, 15, 11, 6)


@pytest.fixture
def config(tmp_path: Path) -> ExperimentConfig:
    """A model with 4 layers and 2 heads on 4 ranks."""
    write_samples(tmp_path / "samples.h5", [([1] * n, [9], "any") for n in TUNED_LENGTHS])
    tables = tiny_experiment(n_stages=4).model_dump(exclude_none=True)
    tables["data"] |= {"dataset": str(tmp_path / "samples.h5"), "tokens_per_batch": 100}
    tables["model"]["layers_per_stage"] = [1, 1, 1, 1]
    tables["planner"]["batch"] = {"rule": "token_budget", "tokens_per_microbatch": 64}
    return ExperimentConfig.model_validate(tables)


def tune(files: Experiment, n_batches: int) -> list[Outcome]:
    return predict(Alone(), files, list(variants(files.config)), n_batches)


def written(config: ExperimentConfig, folder: Path) -> str:
    path = folder / "config.toml"
    path.write_text(to_toml(config), encoding="utf-8")
    return str(path)


def test_all_divisions_of_the_ranks_are_tried_with_all_rules(config: ExperimentConfig) -> None:
    found = Counter(
        (v.cluster.n_replicas, v.cluster.n_stages, v.cluster.n_shards, v.cluster.zero_stage)
        for v in variants(config)
    )
    without_replicas = [(1, 1, 4, 0), (1, 2, 2, 0), (1, 4, 1, 0)]
    with_replicas = [(2, 1, 2), (2, 2, 1), (4, 1, 1)]
    assert found.keys() == {*without_replicas, *((*n, z) for n in with_replicas for z in (0, 1))}
    assert set(found.values()) == {6}


def test_a_prediction_is_that_of_the_planner_of_the_variant(config: ExperimentConfig) -> None:
    found = [p for p in tune(Experiment(config), 2) if not p.reason]
    cluster = config.cluster.model_copy(update={"n_stages": 2, "n_replicas": 2})
    variant = Variant("token_budget", config.planner, cluster)
    (prediction,) = [p for p in found if p.variant == variant]
    experiment = Experiment(variant.applied_to(config)).open()
    batches = [experiment.sampler.iteration(k) for k in range(2)]
    plans = [experiment.planner.make_plans(k, batch) for k, batch in enumerate(batches)]
    total_ms = sum(each[0].prediction.iteration_ms for each in plans)
    assert prediction.iteration_ms == pytest.approx(total_ms / 2, rel=1e-12)
    tokens = sum(sample.tokens for batch in batches for sample in batch)
    assert prediction.tokens_per_s == pytest.approx(1e3 * tokens / total_ms, rel=1e-12)
    first_stages = [plan for each in plans for plan in each if plan.stage == 0]
    padded = sum(m.padded_tokens for plan in first_stages for m in plan.microbatches)
    assert real_shares(prediction.records) == (tokens / padded, None)


def test_what_cannot_be_divided_has_a_reason(config: ExperimentConfig) -> None:
    refused = [r for r in tune(Experiment(config), 1) if r.reason]
    too_many = [
        r for r in refused if r.reason.startswith("variant: cluster.n_shards (4) does not divide")
    ]
    assert {(r.variant.cluster.n_stages, r.variant.cluster.n_shards) for r in too_many} == {(1, 4)}
    assert refused == too_many


def test_the_table_is_printed_fastest_first(
    config: ExperimentConfig, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["tune", written(config, tmp_path), "--batches", "2"]) == 0
    lines = capsys.readouterr().out.splitlines()
    speeds = [float(line.split()[0].replace(",", "")) for line in lines[2:] if line[0] == " "]
    assert len(speeds) == 6 * 8
    assert speeds == sorted(speeds, reverse=True)
    assert lines[2].split()[1] == "1.000"
    too_many = [line for line in lines if ": cannot run: " in line]
    for line in too_many:
        place = "cannot run: 1 of 9, the first on 1 x 1 x 4"
        assert re.match(rf"\w+: {place}.*: variant: cluster.n_shards \(4\) does ", line)
    assert len(too_many) == 6
    assert "note: with dense_packing, the samples of a row attend to each other" in lines


NAIVE: Mapping[str, Any] = {"name": "naive", "planner": {"batch": {"rule": "naive_padding"}}}
OURS: Mapping[str, Any] = {"name": "ours", "planner": {"search": {"effort": 0}}}


def on_drawn_lengths(n_stages: int) -> dict[str, Any]:
    """Tables of a small model with four layers and two heads."""
    tables = tiny_experiment(n_stages).model_dump(exclude_none=True)
    del tables["data"]["dataset"]
    tables["data"] |= {"lengths": {"n_samples": 100, "seed": 1}, "long_samples": "cut_targets"}
    return tables


def grid_study(*methods: Mapping[str, Any], memory: int = 10**9, node: int = 8) -> ExperimentConfig:
    tables = on_drawn_lengths(n_stages=4)
    tables["cluster"]["device_memory_bytes"] = memory
    tables["planner"]["cost"]["recompute"] = ["none", "full"]
    return ExperimentConfig.model_validate(
        {**tables, "study": {"methods": methods, "ranks_per_node": node}}
    )


def test_all_divisions_in_powers_of_two_are_tried_with_shards_inside_a_node() -> None:
    clusters = [v.cluster for v in grid(grid_study(OURS, node=2))]
    found = [(c.n_replicas, c.n_stages, c.n_shards) for c in clusters]
    assert sorted(found) == [(1, 2, 2), (1, 4, 1), (2, 1, 2), (2, 2, 1), (4, 1, 1)]


def test_a_tuned_baseline_is_tried_with_every_size_in_every_mode() -> None:
    def first_division(*methods: Mapping[str, Any]) -> list[Variant]:
        points = grid(grid_study(*methods))
        return [v for v in points if v.cluster == points[0].cluster]

    found = [(v.setting, v.planner.cost.recompute) for v in first_division(NAIVE)]
    assert found == [(rows, (mode,)) for mode in ("none", "full") for rows in ROWS]
    fixed = {**NAIVE, "planner": {"batch": {**NAIVE["planner"]["batch"], "rows_per_microbatch": 3}}}
    assert [v.setting for v in first_division(fixed)] == [3]
    budget = {"name": "budget", "planner": {"batch": {"rule": "token_budget"}}}
    settings = [v.setting for v in first_division(budget)]
    assert settings == 2 * [8, 16, 32, 64, 128, 256]


def test_a_point_is_planned_alike_alone_and_among_others() -> None:
    files = Experiment(grid_study(NAIVE, memory=400_000))
    points = grid(files.config)[::5]
    together = predict(Alone(), files, points, 1)
    assert {bool(outcome.reason) for outcome in together} == {False, True}
    for point, outcome in zip(points, together, strict=True):
        (alone,) = predict(Alone(), files, [point], 1)
        assert (alone.layers, alone.records) == (outcome.layers, outcome.records)


def test_the_best_of_every_method_is_printed_and_all_points_are_kept(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path, table = tmp_path / "study.toml", tmp_path / "grid.csv"
    path.write_text(to_toml(grid_study(NAIVE, OURS)))
    command = ["grid-search", str(path), "--batches", "1", "-o", str(table)]
    assert main(command) == 0
    _, _, *rows, of_naive, of_ours = capsys.readouterr().out.splitlines()
    assert len(rows) == 2
    place = r"the first on 1 x 1 x 4 with 1 rows, recompute none"
    assert re.match(rf"naive: cannot run: \d+ of 84, {place}: variant: cluster.n_shards", of_naive)
    assert of_ours.startswith("ours: cannot run: 1 of 6, the first on 1 x 1 x 4: variant: ")
    header, *lines = table.read_text().splitlines()
    assert len(lines) == 90
    rates: dict[str, float] = {}
    for line in lines:
        cells = dict(zip(header.split(","), line.split(","), strict=False))
        if cells["tokens_per_s"]:
            rate = float(cells["tokens_per_s"])
            rates[cells["method"]] = max(rate, rates.get(cells["method"], 0))
        assert bool(cells["tokens_per_s"]) != bool(cells["reason"])
    assert [row.split()[0] for row in rows] == [
        f"{rate:,.0f}" for rate in sorted(rates.values(), reverse=True)
    ]
    table.write_text("mine")
    assert main(command) == 2
    assert table.read_text() == "mine"
    assert main([*command, "--force"]) == 0
    assert table.read_text().splitlines()[0] == header


METHODS: tuple[dict[str, Any], ...] = (
    {"name": "naive, padded", "planner": {"batch": {"rule": "naive_padding"}}},
    {"name": "ours", "planner": {"search": {"effort": 1000}}, "cluster": {"n_stages": 2}},
)
N_ITERATIONS = 3


def study(*methods: Mapping[str, object], **planner: object) -> ExperimentConfig:
    """On one stage."""
    tables = on_drawn_lengths(n_stages=1)
    tables["planner"] |= planner
    tables["model"]["layers_per_stage"] = [4]
    tables["training"]["iterations"] = N_ITERATIONS
    return ExperimentConfig.model_validate({**tables, "study": {"methods": methods}})


def simulated(config: ExperimentConfig, folder: Path) -> dict[tuple[str, int], PlannedIteration]:
    outcomes = simulate(Alone(), Experiment(config), folder)
    return {record.key: record for outcome in outcomes for record in outcome.records}


def test_every_method_plans_every_iteration_as_a_run_of_its_own_would(tmp_path: Path) -> None:
    found = simulated(study(*METHODS), tmp_path / "sim")
    assert list(found) == [(m["name"], k) for m in METHODS for k in range(N_ITERATIONS)]
    alone = study()
    plain = ExperimentConfig.model_validate(
        {**alone.model_dump(), "planner": {**alone.planner.model_dump(), **METHODS[0]["planner"]}}
    )
    files = Experiment(plain)
    plans = files.planner.make_plans(1, samples := files.sampler.iteration(1))
    record = found["naive, padded", 1]
    assert record.iteration_ms == plans[0].prediction.iteration_ms
    assert record.microbatches == len(plans[0].microbatches)
    padded = sum(m.padded_tokens for m in plans[0].microbatches)
    assert (record.row_tokens, record.target_row_tokens) == (padded, 0)
    assert (record.samples, record.input_tokens + record.target_tokens) == (
        len(samples),
        sum(sample.tokens for sample in samples),
    )


def test_a_method_may_have_a_chooser_that_no_table_stands_for(tmp_path: Path) -> None:
    def by_baseline(cost: CostModel, cluster: Cluster) -> Chooser:
        return Baseline(naive(2), [one_f_one_b], cost, cluster)

    files = Experiment(study(METHODS[1], {"name": "mine"}))
    outcomes = simulate(Alone(), files, tmp_path / "sim", choosers={"mine": by_baseline})
    found = {record.key: record for outcome in outcomes for record in outcome.records}
    for k in range(N_ITERATIONS):
        assert found["mine", k].microbatches == -(-found["mine", k].samples // 2)
        assert found["ours", k].microbatches != found["mine", k].microbatches


def test_a_folder_holds_its_configuration_and_a_line_per_iteration(tmp_path: Path) -> None:
    config, folder = study(*METHODS), tmp_path / "sim"
    found = simulated(config, folder)
    assert {path.name for path in tmp_path.rglob("*")} == {
        *("sim", "config.toml", "planned.jsonl", "planning.jsonl")
    }
    assert load_config(folder / "config.toml") == config
    lines = [json.loads(line) for line in (folder / "planned.jsonl").read_text().splitlines()]
    assert [PlannedIteration(**line) for line in lines] == list(found.values())
    times = [json.loads(line) for line in (folder / "planning.jsonl").read_text().splitlines()]
    assert [(each["method"], each["iteration"]) for each in times] == list(found)
    assert all(each["planning_ms"] > 0 for each in times)


def test_a_folder_that_cannot_be_made_is_refused_before_the_work(tmp_path: Path) -> None:
    shares = list[float]()
    for name, message in (("", "already exists; name a new folder"), ("x" * 300, "its name exc")):
        with pytest.raises(InputError, match=message):
            simulate(Alone(), Experiment(study(*METHODS)), tmp_path / name, shares.append)
    assert not shares


def test_a_simulation_that_fails_leaves_nothing(tmp_path: Path) -> None:
    def fail(_: float) -> None:
        raise RunError("full")

    with pytest.raises(RunError, match="full"):
        simulate(Alone(), Experiment(study(*METHODS)), tmp_path / "sim", fail)
    assert not any(tmp_path.iterdir())


def test_the_table_compares_real_tokens_per_predicted_second(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    config = tmp_path / "study.toml"
    nothing = {"name": "none", "cluster": {"device_memory_bytes": 1000}}
    config.write_text(to_toml(study(nothing)))
    assert main(["simulate", str(config), "-o", str(tmp_path / "failed")]) == 1
    capsys.readouterr()
    config.write_text(to_toml(study(*METHODS, nothing)))
    assert main(["simulate", str(config), "-o", str(tmp_path / "out")]) == 0
    title, _, *rows, reason = capsys.readouterr().out.splitlines()
    assert title == "predicted, 3 iterations; ranks are replicas x stages x shards:"
    records = simulated(study(*METHODS), tmp_path / "again")
    rates = []
    for method in METHODS:
        own = [record for (name, _), record in records.items() if name == method["name"]]
        n_tokens = sum(record.input_tokens + record.target_tokens for record in own)
        rates.append(1e3 * n_tokens / sum(record.iteration_ms for record in own))
    for row, rate in zip(rows, sorted(rates, reverse=True), strict=True):
        assert row.split()[:2] == [f"{rate:,.0f}", f"{rate / max(rates):.3f}"]
    assert reason.startswith("none: cannot run: 1 of 1, the first on 1 x 1 x 1: ")
