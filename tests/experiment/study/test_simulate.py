"""Whole runs are planned by every method, in any number of starts."""

import json
import os
import sys
import threading
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from tests.examples.baselines import naive
from tests.examples.measured_layers import SHAPE, linear_table
from tests.jobs.tiny_experiment import tiny_experiment

from dynapipe_hpc.cli.main import main
from dynapipe_hpc.cli.verb import open_ranks
from dynapipe_hpc.data.errors import InputError, RunError
from dynapipe_hpc.experiment.config import ExperimentConfig
from dynapipe_hpc.experiment.experiment import Experiment
from dynapipe_hpc.experiment.load import to_toml
from dynapipe_hpc.experiment.run_lock import locked
from dynapipe_hpc.experiment.study.predict import PlannedIteration
from dynapipe_hpc.experiment.study.simulate import simulate
from dynapipe_hpc.job.ranks import Alone
from dynapipe_hpc.plan.cluster import Cluster
from dynapipe_hpc.planner.baselines.baseline import Baseline
from dynapipe_hpc.planner.choose.chooser import Chooser
from dynapipe_hpc.planner.cost.cost_model import CostModel
from dynapipe_hpc.planner.cost.table.profile_file import write_table
from dynapipe_hpc.planner.schedule.one_f_one_b import one_f_one_b

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
    found = simulated(study(*METHODS), tmp_path)
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
    planned = simulate(Alone(), files, tmp_path, choosers={"mine": by_baseline})
    found = {each.record.key: each.record for each in planned}
    for k in range(N_ITERATIONS):
        assert found["mine", k].microbatches == -(-found["mine", k].samples // 2)
        assert found["ours", k].microbatches != found["mine", k].microbatches


def test_a_killed_simulation_goes_on_where_it_stopped(tmp_path: Path) -> None:
    whole, killed = tmp_path / "whole", tmp_path / "killed"
    config = study(*METHODS)
    simulated(config, whole)
    (killed / "parts").mkdir(parents=True)
    (killed / "config.toml").write_text((whole / "config.toml").read_text())
    lines = (whole / "planned.jsonl").read_text().splitlines()

    def part(index: int, planning_ms: float) -> str:
        return f'{{"record":{lines[index]},"planning_ms":{planning_ms}}}\n'

    # Times that no planning takes show which lines were not planned again.
    incomplete = part(1, 3.0).rstrip()
    (killed / "parts" / "00000.jsonl").write_text(part(4, 111.5) + part(0, 222.5) + incomplete)
    (killed / "parts" / "00003.jsonl").write_text(part(2, 333.5))
    simulated(config, killed)
    assert (killed / "planned.jsonl").read_bytes() == (whole / "planned.jsonl").read_bytes()
    lines_of_times = (killed / "planning.jsonl").read_text().splitlines()
    times = [json.loads(line)["planning_ms"] for line in lines_of_times]
    assert [times[0], times[2], times[4]] == [222.5, 333.5, 111.5]
    assert times[1] != 3
    assert {each.name for each in killed.iterdir()} == {
        "config.toml",
        "inputs.json",
        "planned.jsonl",
        "planning.jsonl",
    }
    before = (killed / "planning.jsonl").stat().st_ino
    simulated(config, killed)
    assert (killed / "planning.jsonl").stat().st_ino == before  # only read
    whole_lines = (killed / "planning.jsonl").read_text().splitlines(keepends=True)
    for name in ("planned.jsonl", "planning.jsonl"):
        kept = (killed / name).read_text().splitlines(keepends=True)[:-1]
        (killed / name).write_text("".join(kept))
    simulated(config, killed)
    assert (killed / "planned.jsonl").read_bytes() == (whole / "planned.jsonl").read_bytes()
    assert (killed / "planning.jsonl").read_text().startswith("".join(whole_lines[:-1]))


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
    simulated(study(METHODS[0]), tmp_path)
    with pytest.raises(InputError, match="holds a simulation of another configuration"):
        simulated(study(METHODS[1]), tmp_path)
    (tmp_path / "mine.txt").touch()
    with pytest.raises(InputError, match="holds files that no simulation wrote"):
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
    simulated(study(METHODS[0]), tmp_path)
    other = Experiment(study(METHODS[0]))
    other.trained = other.trained._replace(inputs=other.trained.inputs + 1)
    with pytest.raises(InputError, match="other contents of the samples"):
        simulate(Alone(), other, tmp_path)


def test_two_simulations_do_not_write_one_folder(tmp_path: Path) -> None:
    with locked(Alone(), tmp_path / "out"):
        with pytest.raises(InputError, match="out: in use by another run, process"):
            simulated(study(METHODS[0]), tmp_path / "out")
        assert {path.name for path in (tmp_path / "out").iterdir()} == {".lock"}
    simulated(study(METHODS[0]), tmp_path / "out")
    assert not (tmp_path / "out" / ".lock").exists()


def test_a_simulation_whose_lock_is_lost_writes_no_more(tmp_path: Path) -> None:
    def lose(_: float) -> None:
        for path in (tmp_path / "sim" / ".lock").iterdir():
            path.unlink()

    with pytest.raises(RunError, match="the lock of this run is gone"):
        simulate(Alone(), Experiment(study(*METHODS)), tmp_path / "sim", lose)
    written = [path.read_text().count("\n") for path in (tmp_path / "sim").rglob("*.jsonl")]
    assert sum(written) == 1


def test_an_error_of_a_thread_ends_a_process_that_needs_no_mpi(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def fail() -> None:
        raise RunError("the lock is gone")

    exit_codes = list[int]()
    monkeypatch.setattr(os, "_exit", exit_codes.append)
    with open_ranks():
        thread = threading.Thread(target=fail)
        thread.start()
        thread.join()
    assert (exit_codes, capsys.readouterr().err) == ([1], "dynapipe-hpc: the lock is gone\n")


@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
@pytest.mark.parametrize(
    ("code", "exit_codes", "told"), [("dict", [1], "KeyError: 'x'"), ("exit", [], "")]
)
def test_a_fault_of_a_thread_is_told_with_its_place(
    code: str,
    exit_codes: list[int],
    told: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    found = list[int]()
    monkeypatch.setattr(os, "_exit", found.append)
    fail = {"dict": lambda: dict[str, int]()["x"], "exit": lambda: sys.exit(0)}[code]
    with open_ranks():
        thread = threading.Thread(target=fail)
        thread.start()
        thread.join()
    assert found == exit_codes
    assert told in capsys.readouterr().err
