"""What each of our ingredients gains: added one by one, and left out of all."""

from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from itertools import pairwise
from pathlib import Path
from statistics import median
from typing import Any

from dynapipe_hpc.experiment.study.describe_simulation import tokens_per_s
from reproduce import methods
from reproduce.drawing import draw_bars
from reproduce.figure import Claim, Figure, Row
from reproduce.settings import Division, Setting, tables_of
from reproduce.studies import N_BATCHES, Found, Method, Studies, Study, of_method, simulated

SETTINGS = {
    "GPT 6.7B, eight stages": (Setting("gpt", 8, 4096, 65_536), Division(1, 8, 1)),
    "T5 11B, four stages of two shards": (Setting("t5", 8, 4096, 65_536), Division(1, 4, 2)),
}
IN_ORDER = {"rules": ["1f1b"]}
NO_SEARCH = {"effort": 0}
EVERYTHING = methods.everything()["planner"]

ADDED: tuple[Method, ...] = (
    {
        "name": "token budget, 1F1B",
        "planner": {"batch": {"rule": "token_budget"}, "schedule": IN_ORDER},
    },
    {
        "name": "+ exact split",
        "planner": {
            "batch": {"rule": "dynamic", "recompute_choice": "per_iteration"},
            "schedule": IN_ORDER,
            "search": NO_SEARCH,
        },
    },
    {
        "name": "+ recomputation per micro-batch",
        "planner": {"schedule": IN_ORDER, "search": NO_SEARCH},
    },
    {"name": "+ adaptive schedules", "planner": {"search": NO_SEARCH}},
    {"name": "+ search of sizes, order, balance", "planner": {}},
    {"name": "+ split backward passes", "planner": {"schedule": {"split_backward": True}}},
    {"name": "+ packed rows", "planner": EVERYTHING},
)
PLACED = "+ layers placed by cost"
ALL: Method = {"name": PLACED, "planner": EVERYTHING}
LEFT_OUT: tuple[Method, ...] = (
    {
        "name": "without recomputation per micro-batch",
        "planner": {
            **EVERYTHING,
            "batch": {**EVERYTHING["batch"], "recompute_choice": "per_iteration"},
        },
    },
    {
        "name": "without adaptive schedules",
        "planner": {
            **EVERYTHING,
            "schedule": {"rules": ["1f1b", "zb_h1"], "split_backward": True},
        },
    },
    {"name": "without search", "planner": {**EVERYTHING, "search": NO_SEARCH}},
    {"name": "without split backward passes", "planner": {"batch": EVERYTHING["batch"]}},
    {"name": "without packed rows", "planner": {"schedule": EVERYTHING["schedule"]}},
)
UNPLACED = "without layers placed by cost"

Rates = Mapping[str, Sequence[float]]
"""Real tokens per second by seed, of every method that can run."""


def simulate_all(studies: Studies) -> dict[str, Rates]:
    """Simulates all steps in every setting."""
    asked = {
        (title, is_placed): _study(*of, is_placed=is_placed)
        for title, of in SETTINGS.items()
        for is_placed in (False, True)
    }
    found = studies.run(list(asked.values()))
    return {
        title: {**_rates(found, asked[title, False]), **_rates(found, asked[title, True])}
        for title in SETTINGS
    }


def figures(found: Mapping[str, Rates]) -> list[Figure]:
    """The gain of every ingredient in both directions."""
    inputs = (
        f"{simulated(N_BATCHES)} {'; '.join(SETTINGS)}; samples of up to 4,096 tokens, 65,536 "
        "tokens per batch. The token budget is the best for every batch, and so is the mode of "
        "recomputation before each micro-batch has its own."
    )
    added = [*_rows(found, [m["name"] for m in ADDED] + [PLACED])]
    names = {PLACED: "all", ADDED[-1]["name"]: UNPLACED}
    left_out = [*_rows(found, [PLACED, *(m["name"] for m in LEFT_OUT), ADDED[-1]["name"]])]
    left_out = [{**row, "method": names.get(str(row["method"]), row["method"])} for row in left_out]
    return [
        Figure(
            "ingredients_added",
            "What does each ingredient gain, added to those before it?",
            inputs,
            "Every ingredient is a gain or, where it has nothing to act on, no loss.",
            added,
            partial(_draw, added),
            [*_claims_of_steps(found)],
        ),
        Figure(
            "ingredients_left_out",
            "What is lost without one of them?",
            inputs,
            "No variant is faster than all together.",
            left_out,
            partial(_draw, left_out),
            [*_claims_of_losses(found)],
        ),
    ]


def _study(setting: Setting, division: Division, *, is_placed: bool) -> Study:
    tables: dict[str, Any] = tables_of(setting, division, N_BATCHES)
    if is_placed:
        model = {key: of for key, of in tables["model"].items() if key != "layers_per_stage"}
        tables = tables | {"model": model}
    compared = [ALL, *LEFT_OUT] if is_placed else list(ADDED)
    where = "placed" if is_placed else "even"
    return Study(f"ingredients/{setting.family}/{where}", setting.family, compared, tables)


def _rates(found: Found, study: Study) -> Rates:
    rates: dict[str, Sequence[float]] = {}
    for name in (str(method["name"]) for method in study.methods):
        of_seeds = found[study.name]
        known = [tokens_per_s([p.record for p in of_method(each, name)]) for each in of_seeds]
        if None not in known:
            rates[name] = [rate for rate in known if rate is not None]
    return rates


def _rows(found: Mapping[str, Rates], names: Sequence[str]) -> Iterator[Row]:
    for title, rates in found.items():
        for name in names:
            if name in rates:
                yield {
                    "setting": title,
                    "method": name,
                    "tokens_per_s": median(rates[name]),
                    "least": min(rates[name]),
                    "most": max(rates[name]),
                }


def _draw(rows: Sequence[Row], path: Path) -> None:
    titles = dict.fromkeys(str(row["setting"]) for row in rows)
    panels = {title: [row for row in rows if row["setting"] == title] for title in titles}
    draw_bars(path, panels, "tokens_per_s", "real tokens/s")


def _gains(rates: Rates, method: str, other: str) -> list[float]:
    """How much faster one method is than another, by seed, in percent."""
    return [100 * (a / b - 1) for a, b in zip(rates[method], rates[other], strict=True)]


def _claims_of_steps(found: Mapping[str, Rates]) -> Iterator[Claim]:
    """A step is no loss if it loses at most what rounding of predictions does."""
    steps = [method["name"] for method in ADDED] + [PLACED]
    for title, rates in found.items():
        ran = [step for step in steps if step in rates]
        gains = [_gains(rates, b, a) for a, b in pairwise(ran)]
        text = [f"{step} {median(gain):+.1f} %" for step, gain in zip(ran[1:], gains, strict=True)]
        yield Claim(
            "Ingredients (ours)",
            f"{title}: none of the ingredients is a loss",
            "-",
            "; ".join(text),
            all(median(gain) >= -0.05 for gain in gains),
            f"medians of seeds, from {ran[0]}; budgets are compared by simulating iterations, and "
            "the exact split is not until the search is added",
        )


def _claims_of_losses(found: Mapping[str, Rates]) -> Iterator[Claim]:
    for title, rates in found.items():
        lost = {
            name: median(_gains(rates, name, PLACED))
            for name in [*(method["name"] for method in LEFT_OUT), ADDED[-1]["name"]]
            if name in rates
        }
        texts = [
            f"{UNPLACED if name == ADDED[-1]['name'] else name} {loss:+.1f} %"
            for name, loss in lost.items()
        ]
        yield Claim(
            "Ingredients (ours)",
            f"{title}: without any of them it is not faster",
            "-",
            "; ".join(texts),
            all(loss <= 0.05 for loss in lost.values()),
            "medians of seeds",
        )
