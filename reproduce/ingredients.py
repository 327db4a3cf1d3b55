"""Gain of each of our ingredients: added one by one, and left out of all."""

from collections.abc import Iterator, Mapping
from functools import partial
from itertools import pairwise
from typing import Any

from reproduce import methods
from reproduce.figure import Claim, Figure
from reproduce.rates import Rates, draw_rates, gain_percent, rates_of, rows_of
from reproduce.settings import Division, Setting, tables_of
from reproduce.studies import N_BATCHES, Method, Studies, Study, simulated

SETTINGS = {
    "GPT 6.7B, eight stages": (Setting("gpt", 8, 4096, 65_536), Division(1, 8, 1)),
    "T5 11B, four stages of two shards": (Setting("t5", 8, 4096, 65_536), Division(1, 4, 2)),
}
EVERYTHING = methods.everything()["planner"]

ADDED: tuple[Method, ...] = (
    {
        "name": "token budget, 1F1B",
        "planner": {"batch": {"rule": "token_budget"}, "schedule": methods.IN_ORDER},
    },
    {
        "name": "+ exact split",
        "planner": {
            "batch": {"rule": "dynamic", "recompute_choice": "per_iteration"},
            "schedule": methods.IN_ORDER,
            "search": methods.NO_SEARCH,
        },
    },
    {
        "name": "+ recomputation per micro-batch",
        "planner": {"schedule": methods.IN_ORDER, "search": methods.NO_SEARCH},
    },
    {"name": "+ adaptive schedules", "planner": {"search": methods.NO_SEARCH}},
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
    {"name": "without search", "planner": {**EVERYTHING, "search": methods.NO_SEARCH}},
    {"name": "without split backward passes", "planner": {"batch": EVERYTHING["batch"]}},
    {
        "name": "without packed rows",
        "planner": {**EVERYTHING, "batch": {**EVERYTHING["batch"], "layouts": ["padded"]}},
    },
)
UNPLACED = "without layers placed by cost"
WHOLE = "all"
ROUNDING = 0.05
"""Difference in percent that is none."""
STEPS = {name: name for name in [*(str(method["name"]) for method in ADDED), PLACED]}
"""Methods that are added one by one, by name and as figures show them."""
VARIANTS = {
    PLACED: WHOLE,
    **{str(method["name"]): str(method["name"]) for method in LEFT_OUT},
    str(ADDED[-1]["name"]): UNPLACED,
}
"""Likewise those of which something is left out."""


def simulate_all(studies: Studies) -> dict[str, Rates]:
    """Simulates all steps in every setting."""
    asked = {
        (title, is_placed): _study(*of, is_placed=is_placed)
        for title, of in SETTINGS.items()
        for is_placed in (False, True)
    }
    found = studies.run(list(asked.values()))
    rates = {key: rates_of(found[study.name], study.methods) for key, study in asked.items()}
    return {title: {**rates[title, False], **rates[title, True]} for title in SETTINGS}


def figures(found: Mapping[str, Rates]) -> list[Figure]:
    """The gain of every ingredient in both directions."""
    inputs = (
        f"{simulated(N_BATCHES)} {'; '.join(SETTINGS)}; samples of up to 4,096 tokens, 65,536 "
        "tokens per batch. The token budget is the best for every batch, and so is the mode of "
        "recomputation before each micro-batch has its own."
    )
    added = [row for title, rates in found.items() for row in rows_of(title, _of(rates, STEPS))]
    left_out = [
        row for title, rates in found.items() for row in rows_of(title, _of(rates, VARIANTS))
    ]
    return [
        Figure(
            "ingredients_added",
            "What does each ingredient gain, added to those before it?",
            inputs,
            "Every ingredient is a gain or, where it has nothing to act on, no loss.",
            added,
            partial(draw_rates, added),
            [*_claims_of_steps(found)],
        ),
        Figure(
            "ingredients_left_out",
            "What is lost without one of them?",
            inputs,
            "No variant is faster than all together.",
            left_out,
            partial(draw_rates, left_out),
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


def _of(rates: Rates, names: Mapping[str, str]) -> Rates:
    """Rates of some methods, in their order and by their names in a figure."""
    return {shown: rates[name] for name, shown in names.items() if name in rates}


def _claims_of_steps(found: Mapping[str, Rates]) -> Iterator[Claim]:
    """A step is no loss if it loses at most what rounding of predictions does."""
    for title, rates in found.items():
        ran = [step for step in STEPS if step in rates]
        gains = {step: gain_percent(rates, step, before) for before, step in pairwise(ran)}
        yield Claim(
            "Ingredients (ours)",
            f"{title}: none of the ingredients is a loss",
            "-",
            _text(gains),
            min(gains.values()) >= -ROUNDING,
            f"medians of seeds, from {ran[0]}; budgets are compared by simulating iterations, and "
            "the exact split is not until the search is added",
        )


def _claims_of_losses(found: Mapping[str, Rates]) -> Iterator[Claim]:
    for title, rates in found.items():
        shown = _of(rates, VARIANTS)
        losses = {name: gain_percent(shown, name, WHOLE) for name in shown if name != WHOLE}
        yield Claim(
            "Ingredients (ours)",
            f"{title}: without any of them it is not faster",
            "-",
            _text(losses),
            max(losses.values()) <= ROUNDING,
            "medians of seeds",
        )


def _text(gains: Mapping[str, float]) -> str:
    return "; ".join(f"{name} {percent:+.1f} %" for name, percent in gains.items())
