"""Figures of what the project adds say what was simulated, or what benchmarks left."""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest
from reproduce import bound_gaps, ingredients, large_batches, long_tails, store_growth
from reproduce.figure import Figure
from reproduce.settings import tables_of
from reproduce.studies import HERE, Study

from dynapipe_hpc.experiment.load import load_config, with_tables
from dynapipe_hpc.experiment.study.predict import Planned, PlannedIteration, methods_of

MACHINE = {"cores": 2, "processor": "some", "commit": "0123456"}


def written(folder: Path, results: Mapping[str, Any]) -> Path:
    path = folder / "results.json"
    path.write_text(json.dumps({"machine": MACHINE, "results": results}))
    return path


class Simulated:
    """Every method 10 % faster than the one before; all 20 % faster on layers placed by cost."""

    def __init__(self, *, slower: str = "", fails: str = "") -> None:
        self.slower, self.fails = slower, fails

    def run(self, studies: Sequence[Study]) -> dict[str, list[list[Planned]]]:
        found = {}
        for study in studies:
            is_placed = "layers_per_stage" not in study.tables["model"]
            rates = {
                str(method["name"]): (2.0 - 0.1 * k if is_placed else 1.1**k / 1.1**6 * 2 / 1.2)
                * (0.5 if method["name"] == self.slower else 1)
                for k, method in enumerate(study.methods)
            }
            found[study.name] = [
                [self._planned(name, rate) for name, rate in rates.items()] for _ in study.seeds
            ]
        return found

    def _planned(self, name: str, rate: float) -> Planned:
        reason = "too large" if name == self.fails else ""
        times = (900 / rate, 900 / rate, 450 / rate, 1.0)
        return Planned(PlannedIteration(name, 0, 9, 900, 0, 900, 0, 4, *times, reason), 1.0)


def ingredient_figures(**faults: str) -> tuple[Figure, Figure]:
    studies: Any = Simulated(**faults)
    added, left_out = ingredients.figures(ingredients.simulate_all(studies))
    return added, left_out


def test_ingredients_are_added_one_by_one_and_left_out_of_all() -> None:
    added, left_out = ingredient_figures()
    gpt, _ = added.claims
    steps = [str(method["name"]) for method in ingredients.ADDED[1:]]
    assert gpt.found == "; ".join(f"{step} +10.0 %" for step in steps) + (
        "; + layers placed by cost +20.0 %"
    )
    assert gpt.holds
    gpt, _ = left_out.claims
    assert gpt.holds
    assert "without search -15.0 %" in gpt.found
    assert gpt.found.endswith("without layers placed by cost -16.7 %")
    assert [row["method"] for row in left_out.rows[:7]] == [
        "all",
        *(method["name"] for method in ingredients.LEFT_OUT),
        ingredients.UNPLACED,
    ]
    rates = [float(row["tokens_per_s"]) for row in added.rows[:8]]
    assert rates == sorted(rates)
    assert rates[-1] == float(left_out.rows[0]["tokens_per_s"]) == pytest.approx(2000)


@pytest.mark.parametrize("title", list(ingredients.SETTINGS))
def test_every_step_changes_what_it_says(title: str) -> None:
    setting, division = ingredients.SETTINGS[title]
    every = [*ingredients.ADDED, *ingredients.LEFT_OUT, ingredients.ALL]
    tables = tables_of(setting, division, 1) | {"study": {"methods": every}}
    config = with_tables(load_config(HERE / f"{setting.family}.toml"), "test", tables)
    of = {method.method: method.planner.model_dump() for method in methods_of(config)}
    assert len(of) == len(every)
    whole = of.pop(ingredients.PLACED)
    for method in ingredients.LEFT_OUT:
        parts = of[str(method["name"])]
        [changed] = [part for part in whole if parts[part] != whole[part]]
        keys = [key for key in whole[changed] if parts[changed][key] != whole[changed][key]]
        assert len(keys) == 1
    steps = [of[str(method["name"])] for method in ingredients.ADDED]
    for before, after in zip(steps, [*steps[1:], whole], strict=True):
        differ = [part for part in whole if before[part] != after[part]]
        assert len(differ) == (2 if before is steps[0] else 0 if before is steps[-1] else 1)


@pytest.mark.parametrize("seconds", [1.9, 2.1])
def test_the_largest_batch_is_the_one_that_counts(tmp_path: Path, seconds: float) -> None:
    def case(whole_s: float) -> Mapping[str, float]:
        sizes = {"micro-batches": 9, "MB": 5, "predicted": 11, "bound": 10}
        return {"whole": 1e3 * whole_s, **sizes}

    results = {
        "262144 tokens, 64 x 4, 1 modes, everything": case(9),
        "4194304 tokens, 64 x 64, 1 modes, everything": case(seconds),
        "4194304 tokens, 64 x 64, 3 modes, everything": case(9),
        "1000 samples, 4 x 16, 1 modes": case(9),
    }
    figure = large_batches.figure(written(tmp_path, results))
    [claim] = figure.claims
    assert claim.holds == (seconds < 2)
    assert claim.found == f"no recomputation: {seconds:.2f} s; all modes of recomputation: 9.00 s"
    assert [row["gap"] for row in figure.rows] == pytest.approx(3 * [10])


@pytest.mark.parametrize("slices", [1.0, 1.1, 1.6])
def test_slices_count_against_whole_samples_work_and_rules(tmp_path: Path, slices: float) -> None:
    times = {"balanced": 1.7, "budget": 1.5, "whole": 2.1, "slices": 9.0, "over work": slices}
    results = {
        f"a100_80gb, with: {longest}; {tokens}; {stages}": times
        for longest, tokens, stages in (
            ("32,768", "262,144", 4),
            ("32,768", "262,144", 8),
            ("65,536", "1,048,576", 8),
        )
    }
    results["a100_80gb, as drawn: 65,536; 262,144; 8"] = {**times, "over work": 7.0}
    figure = long_tails.figure(written(tmp_path, results))
    assert len(figure.rows) == 3 * 4
    assert [claim.holds for claim in figure.claims] == [slices < 1.05, slices < 1.08, slices < 1.5]
    assert figure.claims[0].found.startswith(
        f"samples to 32,768, 262,144 tokens, 4 stages: {2.1 / slices:.2f}x, 1.15x wanted; "
    )


@pytest.mark.parametrize("grows", [False, True])
def test_calls_are_counted_and_follow_their_law_beyond(tmp_path: Path, *, grows: bool) -> None:
    def counts(n_hosts: int) -> Mapping[str, Mapping[str, int]]:
        none = {"messages": 0, "collectives": 0, "one_sided": 0}
        return {
            "plan": {**none, "one_sided": 3 * (n_hosts - 1)},
            "take": {**none, "messages": 2 * n_hosts if grows else 0},
            "agree": {**none, "collectives": 3},
        }

    zero = [0.0, 0.0, 0.0]
    laws = {
        "plan": {"messages": zero, "collectives": zero, "one_sided": [-3.0, 3.0, 0.0]},
        "take": {"messages": [0.0, 2.0 * grows, 0.0], "collectives": zero, "one_sided": zero},
        "agree": {"messages": zero, "collectives": [3.0, 0.0, 0.0], "one_sided": zero},
    }
    results = {
        "measured": {"8": counts(1), "16": counts(2)},
        "laws": laws,
        "modelled_us": {"4096": {"planner, per iteration it plans": 40_000.0}},
    }
    figure = store_growth.figure(written(tmp_path, results))
    of_ranks, of_planner = figure.claims
    assert of_ranks.holds != grows
    assert (of_planner.holds, of_planner.found) == (
        True,
        "1,533 to 511 other hosts of 4,096 ranks; 40 ms",
    )
    [beyond] = [
        row for row in figure.rows if row["ranks"] == 4096 and "planner" in str(row["method"])
    ]
    assert (beyond["calls"], beyond["source"]) == (1533, "law")


def test_figures_of_what_is_recorded_can_be_drawn(tmp_path: Path) -> None:
    made = [bound_gaps, large_batches, long_tails, store_growth]
    for figure in (each.figure() for each in made):
        assert figure.inputs.startswith(("Measured", "Predicted", "Counted"))
        figure.draw(tmp_path / f"{figure.name}.svg")
        assert (tmp_path / f"{figure.name}.svg").stat().st_size > 10_000
