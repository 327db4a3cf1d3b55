"""Figures of the study say what their simulations found."""

import json
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest
from reproduce import (
    ablations,
    accuracy,
    best_division,
    bound_gaps,
    efficiency,
    ingredients,
    large_batches,
    long_tails,
    methods,
    packing,
    planning_time,
    scaling,
    settings,
    store_growth,
)
from reproduce.best_division import Point, Points
from reproduce.figure import Claim, Figure
from reproduce.page import claims_text, write_page
from reproduce.settings import Division, Setting, tables_of
from reproduce.studies import HERE, Study

from dynapipe_hpc.experiment.load import load_config, with_tables
from dynapipe_hpc.experiment.study.predict import Planned, PlannedIteration, methods_of

RATES = {  # real tokens per ms by method, at 512 tokens; all but packing keep it
    methods.PACKING: 10,
    methods.SAME: 9,
    methods.FITTED: 12,
    methods.BALANCED: 20,
    methods.PUBLISHED: 15,
    methods.PADDED: 18,
    methods.ALL: 30,
}
ALL_ROUND = Setting("gpt", 8, 2048, 65_536)


def planned(
    method: str, rate: float, planning_ms: float = 1.0, reason: str = "", family: str = "t5"
) -> Planned:
    """An iteration of 900 real tokens among 1,000 computed, of a T5 a third in the decoder."""
    ms, (rows, target_rows) = 900 / rate, {"t5": (700, 300), "gpt": (1000, 0)}[family]
    sizes = (9, 600, 300, rows, target_rows, 4)
    return Planned(PlannedIteration(method, 0, *sizes, ms, ms, ms / 2, 1.0, reason), planning_ms)


def made_up() -> Iterator[tuple[tuple[Setting, str], Point]]:
    """Packing takes four times as long per token at 8,192 tokens, and cannot run some points."""
    for setting in settings.settings():
        for method, rate in RATES.items():
            slower = {8192: 4}.get(setting.longest, 1) if method == methods.PACKING else 1
            if method == methods.PACKING and setting[:3] == ("t5", 32, 8192):
                continue
            if method in (methods.FITTED, methods.BALANCED) and setting.n_gpus != 8:
                continue
            rates = [seed * rate * setting.tokens / slower for seed in (0.9, 1.0, 1.2)]
            of_seeds = [planned(method, rate / slower, family=setting.family)] * 3
            yield (setting, method), Point(Division(1, setting.n_gpus, 1), rates, of_seeds)


POINTS: Points = dict(made_up())


def by_text(claims: Sequence[Claim]) -> dict[str, Claim]:
    return {claim.text: claim for claim in claims}


class Simulations:
    """Rates of the same methods on any division: more with more stages, but not all of them run."""

    def __init__(self) -> None:
        self.asked: list[str] = []

    def run(self, studies: Sequence[Study]) -> dict[str, list[list[Planned]]]:
        """Results as of `Studies.run`; published micro-batches do not fit into later batches."""
        found = {}
        for study in studies:
            self.asked.append(study.name)
            cluster = study.tables["cluster"]
            of_seeds = []
            for seed in study.seeds:
                of_seed = []
                for name in (str(method["name"]) for method in study.methods):
                    n_stages, is_first = cluster["n_stages"], study.name.endswith("first")
                    fails = name == methods.PUBLISHED and n_stages == 4 and not is_first
                    rate = -n_stages if name == methods.PACKING else n_stages
                    reason = "too large" if fails or cluster["n_shards"] > 1 else ""
                    of_seed.append(planned(name, 100 + rate + seed, reason=reason))
                of_seeds.append(of_seed)
            found[study.name] = of_seeds
        return found


def test_every_method_has_the_best_division_that_runs_all_batches() -> None:
    setting = Setting("gpt", 4, 512, 65_536)
    simulations: Any = Simulations()
    found = best_division.simulate_all(simulations, [setting])
    best = {method: str(found[setting, method].division) for _, method in found}
    assert best == {
        methods.PACKING: "4x1x1",
        methods.SAME: "1x4x1",
        methods.PUBLISHED: "2x2x1",
        methods.PADDED: "1x4x1",
        methods.ALL: "1x4x1",
    }
    assert found[setting, methods.ALL].rates == pytest.approx([104_000, 105_000, 106_000])
    assert found[setting, methods.SAME].rates == pytest.approx([96_000, 97_000, 98_000])
    assert sum(name.endswith("first") for name in simulations.asked) == 6


def test_claims_compare_medians() -> None:
    over_lengths, over_tokens = packing.figures(POINTS)
    found = by_text(over_lengths.claims)
    faster = found[f"GPT: {methods.PUBLISHED} is faster than packing"]
    assert (faster.found, faster.cells[4]) == ("1.50x to 6.00x (4 GPUs, 8,192 tokens)", "yes")
    behind = found["GPT: ours is faster than today's packed rule at every length (8 GPUs)"]
    assert (behind.found, behind.holds) == ("1.500x to 1.500x", True)
    [falls] = [claim for text, claim in found.items() if "T5: throughput of packing falls" in text]
    assert falls.cells[4] == "in part"  # not on 32 GPUs, where it does not run 8,192 tokens
    assert f"{methods.PACKING}: 0 to 75 %; {methods.PUBLISHED}: 0 to 0 %" in falls.found
    [reach] = [claim for text, claim in found.items() if "T5: dynamic micro-batches run" in text]
    assert f"{methods.PACKING}: 8,192, 8,192, 8,192, 4,096; " in reach.found
    [grows, *_] = over_tokens.claims
    assert grows.found.startswith(f"{methods.PACKING}: 8.00x to 8.00x")
    assert not grows.holds  # all grow alike
    assert {row["model"] for row in over_tokens.rows if row["tokens"] == 16_384} == {
        s.model for s in settings.settings()
    }


@pytest.mark.parametrize(("planning_ms", "holds"), [(4.9, True), (5.1, False)])
def test_planning_may_take_a_twentieth_of_every_iteration(planning_ms: float, holds: bool) -> None:
    times = [planned(methods.ALL, 9, planning_ms)]
    points = {**POINTS, (ALL_ROUND, methods.ALL): Point(Division(2, 4, 1), [1], times)}
    claim = by_text(planning_time.figure(points).claims)[
        f"planning takes one core less than 0.05 iterations on 4 to 32 GPUs: {methods.ALL}"
    ]
    assert claim.holds == holds


def test_scaling_is_told_per_gpu_and_planning_in_cores() -> None:
    class Scaled:
        def run(self, studies: Sequence[Study]) -> dict[str, list[list[Planned]]]:
            """Replicas add half of what the first one does; planning takes 3 iterations."""
            return {
                study.name: [
                    [
                        planned(name, rate := (1 + study.tables["cluster"]["n_replicas"]) / 2,
                                3 * 900 / rate)
                        for name in scaling.PLANNERS
                    ]
                ]
                for study in studies
            }  # fmt: skip

    studies: Any = Scaled()
    throughput, planning = scaling.figures(scaling.simulate_all(studies))
    assert [row["gpus"] for row in throughput.rows if row["method"] == methods.ALL] == 2 * [
        64, 256, 1024, 4096,
    ]  # fmt: skip
    claim = throughput.claims[1]
    assert (claim.found, claim.holds) == ("1.00 on 64, 0.62 on 256, 0.53 on 1,024, 0.51 on 4,096 "
                                          "GPUs", True)  # fmt: skip
    assert planning.claims[2].found == (
        "weak: 3 of 49,152 on 4,096 GPUs; strong: 3 of 49,152 on 4,096 GPUs"
    )


def test_page_and_claims_are_written(tmp_path: Path) -> None:
    rules = [[planned(str(m["name"]), 9 + k) for k, m in enumerate(ablations.RULES)]]
    schedules = [[planned(str(m["name"]), 9 + k) for k, m in enumerate(ablations.SCHEDULES)]]
    ablated = ablations.Ablations(rules, dict.fromkeys(ablations.BATCHES, schedules))
    figures = [
        *packing.figures(POINTS),
        efficiency.figure(POINTS),
        ablations.microbatching(ablated),
        ablations.schedules(ablated),
        planning_time.figure(POINTS),
    ]
    drawn_ones = figures[3:5]
    page = write_page(tmp_path, drawn_ones)
    for figure in drawn_ones:
        kinds = {path.suffix for path in tmp_path.glob(f"{figure.name}.*")}
        assert kinds == {".csv", ".svg", ".png"}
        assert f'src="{figure.name}.svg"' in page.read_text()
        assert figure.inputs.split(":")[0] in ("Simulated", "Measured")
    drawn = (tmp_path / "schedules.svg").read_bytes()
    figures[4].draw(tmp_path / "schedules.svg")
    assert (tmp_path / "schedules.svg").read_bytes() == drawn
    text = claims_text(figures)
    assert (
        "| C3 | adaptive against 1F1B at 16,384 tokens per batch | +10.1 % | +22.2 % | yes |"
        in (text)
    )
    assert [line.split(" ")[1] for line in text.splitlines() if line.startswith("| C")] == sorted(
        line.split(" ")[1] for line in text.splitlines() if line.startswith("| C")
    )


@pytest.mark.parametrize("family", ["gpt", "t5"])
def test_every_method_can_be_configured(family: str) -> None:
    config = load_config(HERE / f"{family}.toml")
    for n_gpus in settings.N_GPUS:
        setting = Setting(family, n_gpus, 512, 65_536)
        compared: list[Mapping[str, Any]] = best_division.compared(setting)
        for division in settings.divisions(n_gpus):
            tables = settings.tables_of(setting, division, 1) | {"study": {"methods": compared}}
            study = with_tables(config, "test", tables)
            found = methods_of(study)
            assert [method.method for method in found] == [method["name"] for method in compared]
            assert {m.cluster.n_ranks for m in found} == {n_gpus}
            [layers] = {m.applied_to(study).model.layers_per_stage for m in found}
            assert sum(layers or ()) == settings.N_LAYERS[family][n_gpus]


def test_errors_of_predictions_are_those_of_executed_runs(tmp_path: Path) -> None:
    results = {
        "gpt": {"mean_error": 0.04, "mean_peak_error": 0.0},
        "t5, online": {
            "mean_error": 0.06,
            "mean_peak_error": 0.01,
            "least": 0.03,
            "most": 0.065,
            "repeats": 3,
        },
    }
    files = tmp_path / "one.json", tmp_path / "other.json"
    for path, (name, errors) in zip(files, results.items(), strict=True):
        machine = {"cores": 2, "processor": path.stem, "commit": "0123456"}
        path.write_text(json.dumps({"machine": machine, "results": {name: errors}}))
    claims = [*accuracy.claims(files)]
    assert all(path.stem in claim.why for path, claim in zip(files, claims, strict=True))
    found = [(claim.found, claim.holds) for claim in claims]
    assert claims[1].text.startswith("T5: predicted times, corrected by the run, and memory")
    assert found == [
        ("times 4.0 %, memory 0.0 %", True),
        ("times 6.0 % (median of 3, 3.0 to 6.5 %), memory 1.0 %", False),
    ]


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
