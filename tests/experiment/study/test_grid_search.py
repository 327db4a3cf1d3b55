"""The grid has every point of the paper's, and the points that it leaves out are not the best."""

from collections.abc import Mapping
from itertools import groupby
from pathlib import Path
from typing import Any

import pytest
from tests.jobs.tiny_experiment import tiny_experiment, with_keys

from dynapipe_hpc.cli.main import main
from dynapipe_hpc.data.errors import InputError
from dynapipe_hpc.experiment.config import ExperimentConfig
from dynapipe_hpc.experiment.experiment import Experiment
from dynapipe_hpc.experiment.load import load_config, to_toml
from dynapipe_hpc.experiment.study.predict import (
    ROWS,
    Verdict,
    grid,
    grid_search,
    predict,
    write_runs,
)
from dynapipe_hpc.job.ranks import Alone

NAIVE: Mapping[str, Any] = {"name": "naive", "planner": {"batch": {"rule": "naive_padding"}}}
OURS: Mapping[str, Any] = {"name": "ours", "planner": {"search": {"effort": 0}}}


def study(*methods: Mapping[str, Any], memory: int = 10**9, node: int = 8) -> ExperimentConfig:
    """A model with four layers and two heads on four ranks."""
    tables = tiny_experiment(n_stages=4).model_dump(exclude_none=True)
    del tables["data"]["dataset"]
    tables["data"] |= {"lengths": {"n_samples": 100, "seed": 1}, "long_samples": "cut_targets"}
    tables["cluster"]["device_memory_bytes"] = memory
    tables["planner"]["cost"]["recompute"] = ["none", "full"]
    return ExperimentConfig.model_validate(
        {**tables, "study": {"methods": methods, "ranks_per_node": node}}
    )


def test_all_divisions_in_powers_of_two_are_tried_with_shards_inside_a_node() -> None:
    groups = grid(study(OURS, node=2))
    found = {
        (v.cluster.n_replicas, v.cluster.n_stages, v.cluster.n_shards) for g in groups for v in g
    }
    assert found == {(4, 1, 1), (2, 2, 1), (1, 4, 1), (2, 1, 2), (1, 2, 2)}
    assert [len(group) for group in groups] == [1] * 5


def test_a_tuned_baseline_is_tried_with_every_size_in_every_mode() -> None:
    group = grid(study(NAIVE))[0]
    found = [(v.setting, v.planner.cost.recompute) for v in group]
    assert found == [(rows, (mode,)) for mode in ("none", "full") for rows in ROWS]
    fixed = {**NAIVE, "planner": {"batch": {**NAIVE["planner"]["batch"], "rows_per_microbatch": 3}}}
    assert [v.setting for v in grid(study(fixed))[0]] == [3]
    budget = {"name": "budget", "planner": {"batch": {"rule": "token_budget"}}}
    settings = [v.setting for v in grid(study(budget))[0]]
    assert settings == 2 * [8, 16, 32, 64, 128, 256]


@pytest.mark.parametrize(
    ("memory", "rules"), [(10**9, ("1f1b",)), (400_000, ("1f1b",)), (400_000, ())]
)
def test_what_is_left_out_is_not_the_best(memory: int, rules: tuple[str, ...]) -> None:
    """Every group is planned a second time, each point by itself, so that none is left out."""
    method = {**NAIVE, "planner": {**NAIVE["planner"], "schedule": {"rules": rules}}}
    files = Experiment(study(method, memory=memory))
    outcomes = grid_search(Alone(), files, 1)
    assert [o.variant for o in outcomes] == [v for group in grid(files.config) for v in group]
    together = [variant for group in grid(files.config) for variant in group]
    assert list(predict(files, together, 1)) == outcomes
    n_pruned = 0
    for _, group in groupby(outcomes, key=lambda outcome: outcome.variant.cluster):
        found = list(group)
        every = [next(predict(files, [each.variant], 1)) for each in found]
        rates = [each.tokens_per_s for each in every if each.verdict is Verdict.PREDICTION]
        kept = [each.tokens_per_s for each in found if each.verdict is Verdict.PREDICTION]
        assert max(kept, default=0) == max(rates, default=0)
        for outcome, alone in zip(found, every, strict=True):
            if (outcome.verdict is Verdict.PRUNED) and outcome.reason.startswith("larger: "):
                assert alone.verdict is Verdict.REFUSAL
            n_pruned += outcome.verdict is Verdict.PRUNED
    assert n_pruned


def test_the_best_of_every_method_is_printed_and_all_points_are_kept(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path, table = tmp_path / "study.toml", tmp_path / "grid.csv"
    path.write_text(to_toml(study(NAIVE, OURS)))
    command = ["grid-search", str(path), "--batches", "1", "-o", str(table)]
    assert main(command) == 0
    _, _, *rows, naive, ours = capsys.readouterr().out.splitlines()
    assert len(rows) == 2
    assert naive.startswith("naive: 84 points: ")
    assert ours == "ours: 6 points: 5 planned, 1 cannot run, 0 needless"
    header, *lines = table.read_text().splitlines()
    assert len(lines) == 90
    rates: dict[str, float] = {}
    for line in lines:
        cells = dict(zip(header.split(","), line.split(","), strict=False))
        if cells["outcome"] == "prediction":
            rate = float(cells["tokens_per_s"])
            rates[cells["method"]] = max(rate, rates.get(cells["method"], 0))
    assert [row.split()[0] for row in rows] == [
        f"{rate:,.0f}" for rate in sorted(rates.values(), reverse=True)
    ]
    assert {line.split(",")[11] for line in lines} == {"prediction", "refusal", "pruned"}
    table.write_text("mine")
    assert main(command) == 2
    assert table.read_text() == "mine"
    assert main([*command, "--force"]) == 0
    assert table.read_text().splitlines()[0] == header


def test_the_best_points_become_configurations_for_a_job_array(tmp_path: Path) -> None:
    config = study(NAIVE, OURS)
    outcomes = grid_search(Alone(), Experiment(config), 1)
    folder, data = tmp_path / "runs", {"lengths": None, "dataset": "none.h5"}
    write_runs(folder, with_keys(config, data=data), outcomes, 2)
    found = [load_config(Path(line)) for line in (folder / "variants.txt").read_text().split()]
    assert [each.planner.batch.rule for each in found] == 2 * ["naive_padding"] + 2 * ["dynamic"]
    rates = {
        (o.variant.method, o.variant.planner, o.variant.cluster): (o.tokens_per_s, o.layers)
        for o in outcomes
        if o.verdict is Verdict.PREDICTION
    }
    for name, two in (("naive", found[:2]), ("ours", found[2:])):
        best = sorted((rate for key, (rate, _) in rates.items() if key[0] == name), reverse=True)
        keys = [(name, each.planner, each.cluster) for each in two]
        assert [rates[key][0] for key in keys] == best[:2]
        assert [rates[key][1] for key in keys] == [each.model.layers_per_stage for each in two]
    with pytest.raises(InputError, match="already exists"):
        write_runs(folder, config, outcomes, 2)


def test_a_number_of_runs_without_a_folder_for_them_is_refused(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert main(["grid-search", "none.toml", "--best", "2"]) == 2
    assert "--best is used with --runs only" in capsys.readouterr().err
