"""The grid has every point of the paper's."""

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from tests.jobs.tiny_experiment import tiny_experiment

from dynapipe_hpc.cli.main import main
from dynapipe_hpc.experiment.config import ExperimentConfig
from dynapipe_hpc.experiment.experiment import Experiment
from dynapipe_hpc.experiment.load import to_toml
from dynapipe_hpc.experiment.study.predict import ROWS, Variant, grid, predict
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
    clusters = [v.cluster for v in grid(study(OURS, node=2))]
    found = [(c.n_replicas, c.n_stages, c.n_shards) for c in clusters]
    assert sorted(found) == [(1, 2, 2), (1, 4, 1), (2, 1, 2), (2, 2, 1), (4, 1, 1)]


def test_a_tuned_baseline_is_tried_with_every_size_in_every_mode() -> None:
    def first_division(*methods: Mapping[str, Any]) -> list[Variant]:
        points = grid(study(*methods))
        return [v for v in points if v.cluster == points[0].cluster]

    found = [(v.setting, v.planner.cost.recompute) for v in first_division(NAIVE)]
    assert found == [(rows, (mode,)) for mode in ("none", "full") for rows in ROWS]
    fixed = {**NAIVE, "planner": {"batch": {**NAIVE["planner"]["batch"], "rows_per_microbatch": 3}}}
    assert [v.setting for v in first_division(fixed)] == [3]
    budget = {"name": "budget", "planner": {"batch": {"rule": "token_budget"}}}
    settings = [v.setting for v in first_division(budget)]
    assert settings == 2 * [8, 16, 32, 64, 128, 256]


def test_a_point_is_planned_alike_alone_and_among_others() -> None:
    files = Experiment(study(NAIVE, memory=400_000))
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
    path.write_text(to_toml(study(NAIVE, OURS)))
    command = ["grid-search", str(path), "--batches", "1", "-o", str(table)]
    assert main(command) == 0
    _, _, *rows, naive, ours = capsys.readouterr().out.splitlines()
    assert len(rows) == 2
    place = r"the first on 1 x 1 x 4 with 1 rows, recompute none"
    assert re.match(rf"naive: cannot run: \d+ of 84, {place}: variant: cluster.n_shards", naive)
    assert ours.startswith("ours: cannot run: 1 of 6, the first on 1 x 1 x 4: variant: ")
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
