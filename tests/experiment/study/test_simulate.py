import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from tests.examples.linear_cost import naive
from tests.jobs.tiny_experiment import tiny_experiment

from dynapipe_hpc.cli.main import main
from dynapipe_hpc.data.errors import InputError, RunError
from dynapipe_hpc.experiment.config import ExperimentConfig
from dynapipe_hpc.experiment.experiment import Experiment
from dynapipe_hpc.experiment.load import load_config, to_toml
from dynapipe_hpc.experiment.study.predict import PlannedIteration
from dynapipe_hpc.experiment.study.simulate import simulate
from dynapipe_hpc.job.ranks import Alone
from dynapipe_hpc.plan.cluster import Cluster
from dynapipe_hpc.planner.baselines.baseline import Baseline
from dynapipe_hpc.planner.choose.choice import Chooser
from dynapipe_hpc.planner.cost.cost_model import CostModel
from dynapipe_hpc.planner.schedule.fixed_order import one_f_one_b

METHODS: tuple[dict[str, Any], ...] = (
    {"name": "naive, padded", "planner": {"batch": {"rule": "naive_padding"}}},
    {"name": "ours", "planner": {"search": {"effort": 1000}}, "cluster": {"n_stages": 2}},
)
N_ITERATIONS = 3


def study(*methods: Mapping[str, object], **planner: object) -> ExperimentConfig:
    """A small model with four layers on one stage, and drawn lengths."""
    tables = tiny_experiment().model_dump(exclude_none=True)
    del tables["data"]["dataset"]
    tables["data"] |= {"lengths": {"n_samples": 100, "seed": 1}, "long_samples": "cut_targets"}
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
    naive = ExperimentConfig.model_validate(
        {**alone.model_dump(), "planner": {**alone.planner.model_dump(), **METHODS[0]["planner"]}}
    )
    files = Experiment(naive)
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


def test_a_folder_that_exists_is_refused_before_the_work(tmp_path: Path) -> None:
    shares = list[float]()
    with pytest.raises(InputError, match="already exists; name a new folder, or remove it first"):
        simulate(Alone(), Experiment(study(*METHODS)), tmp_path, shares.append)
    assert not shares


def test_a_folder_that_cannot_be_made_is_refused_before_the_work(tmp_path: Path) -> None:
    shares = list[float]()
    with pytest.raises(InputError, match="its name exceeds"):
        simulate(Alone(), Experiment(study(*METHODS)), tmp_path / ("x" * 300), shares.append)
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
