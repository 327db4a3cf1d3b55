"""The grid has every point of the paper's, and the points that it leaves out are not the best."""

from collections.abc import Mapping
from itertools import groupby
from pathlib import Path
from typing import Any

import pytest
from tests.jobs.tiny_experiment import tiny_experiment

from dynapipe_hpc.cli.main import main
from dynapipe_hpc.experiment.config import ExperimentConfig
from dynapipe_hpc.experiment.experiment import Experiment
from dynapipe_hpc.experiment.load import to_toml
from dynapipe_hpc.experiment.study.predict import (
    ROWS,
    Verdict,
    grid,
    grid_search,
    predict,
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
