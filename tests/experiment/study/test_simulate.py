from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from tests.examples.linear_cost import naive
from tests.examples.measured_layers import SHAPE, linear_table
from tests.jobs.tiny_experiment import tiny_experiment

from dynapipe_hpc.cli.main import main
from dynapipe_hpc.data.errors import InputError, RunError
from dynapipe_hpc.experiment.config import ExperimentConfig
from dynapipe_hpc.experiment.experiment import Experiment
from dynapipe_hpc.experiment.load import to_toml
from dynapipe_hpc.experiment.study.predict import PlannedIteration
from dynapipe_hpc.experiment.study.simulate import simulate
from dynapipe_hpc.job.ranks import Alone
from dynapipe_hpc.plan.cluster import Cluster
from dynapipe_hpc.planner.baselines.baseline import Baseline
from dynapipe_hpc.planner.choose.choice import Chooser
from dynapipe_hpc.planner.cost.cost_model import CostModel
from dynapipe_hpc.planner.cost.table.profile_file import write_table
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
    planned = simulate(Alone(), Experiment(config), folder)
    return {each.record.key: each.record for each in planned}


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
    planned = simulate(Alone(), files, tmp_path / "sim", choosers={"mine": by_baseline})
    found = {each.record.key: each.record for each in planned}
    for k in range(N_ITERATIONS):
        assert found["mine", k].microbatches == -(-found["mine", k].samples // 2)
        assert found["ours", k].microbatches != found["mine", k].microbatches


def test_a_folder_that_is_complete_is_read(tmp_path: Path) -> None:
    config, folder = study(*METHODS), tmp_path / "sim"
    first = simulated(config, folder)
    assert {path.name for path in tmp_path.rglob("*")} == {
        *("sim", "config.toml", "inputs.json", "planned.jsonl", "planning.jsonl")
    }
    lines = (folder / "planning.jsonl").read_text().splitlines(keepends=True)
    changed = lines[0].rpartition(":")[0] + ":222.5}\n"
    (folder / "planning.jsonl").write_text("".join([changed, *lines[1:]]))
    again = simulate(Alone(), Experiment(config), folder)
    assert ({each.record.key: each.record for each in again}, again[0].planning_ms) == (
        first,
        222.5,
    )
    for name in ("planning.jsonl", "planned.jsonl"):
        whole = (folder / name).read_text()
        (folder / name).write_text("".join(whole.splitlines(keepends=True)[:-1]))
        with pytest.raises(InputError, match="sim: its files are not complete; remove it"):
            simulated(config, folder)
        (folder / name).write_text(whole)


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
    config.write_text(to_toml(study(*METHODS, {"name": "none", "cluster": {
        "device_memory_bytes": 1000}})))  # fmt: skip
    assert main(["simulate", str(config), "-o", str(tmp_path / "out")]) == 0
    title, _, *rows, reason = capsys.readouterr().out.splitlines()
    assert title == "simulated, 3 iterations; nothing was run:"
    records = simulated(study(*METHODS), tmp_path / "again")
    rates = []
    for method in METHODS:
        own = [record for (name, _), record in records.items() if name == method["name"]]
        n_tokens = sum(record.input_tokens + record.target_tokens for record in own)
        rates.append(1e3 * n_tokens / sum(record.iteration_ms for record in own))
    for row, rate in zip(rows, rates, strict=True):
        assert row.split()[:2] == [f"{rate:,.0f}", f"{rate / max(rates):.3f}"]
    assert reason.startswith("none: no plan of 3 of 3 iterations, the first is iteration 0: ")


def test_another_folder_or_configuration_is_refused(tmp_path: Path) -> None:
    simulated(study(METHODS[0]), tmp_path / "sim")
    with pytest.raises(InputError, match="holds a simulation of another configuration"):
        simulated(study(METHODS[1]), tmp_path / "sim")
    with pytest.raises(InputError, match="exists, and holds no simulation; name a new folder"):
        simulated(study(METHODS[0]), tmp_path)


def by_table(path: Path, state_factor: float) -> ExperimentConfig:
    """The same with costs from a table that is written anew."""
    write_table(replace(linear_table(), state_factor=state_factor), path)
    cost = {"kind": "profiled", "path": str(path), "recompute": ["none"]}
    config = study(METHODS[0], cost=cost).model_dump(exclude_none=True)
    model = {**SHAPE.model_dump(exclude_none=True), "layers_per_stage": [6]}
    return ExperimentConfig.model_validate({**config, "model": model})


def test_a_changed_cost_table_is_noticed(tmp_path: Path) -> None:
    table, folder = tmp_path / "costs.h5", tmp_path / "out"
    first = simulated(by_table(table, 4.0), folder)
    assert simulated(by_table(table, 4.0), folder) == first
    told = r"other contents of the cost table .*costs\.h5 \(checksum '\w{16}', now \w{16}\)"
    with pytest.raises(InputError, match=told):
        simulated(by_table(table, 5.0), folder)


def test_other_samples_are_noticed(tmp_path: Path) -> None:
    """As of a dataset that was made anew in the same place."""
    simulated(study(METHODS[0]), tmp_path / "sim")
    other = Experiment(study(METHODS[0]))
    other.trained = other.trained._replace(inputs=other.trained.inputs + 1)
    with pytest.raises(InputError, match="other contents of the samples"):
        simulate(Alone(), other, tmp_path / "sim")
