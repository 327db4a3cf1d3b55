"""Iterations planned by today's rules, each at its best setting, against ours.

    python benchmarks/rules.py [FOLDER] [--json OUT.json]

Inputs, models, devices and accounting are those of against_authors.py: batches of up to 2,048 and
8,192 tokens per sample, four stages, one and two replicas. Rules run 1F1B, as in practice, with
whole backward passes; "adaptive" has the micro-batches of packed_balanced and all our schedules.

A packed row counts as equal rows with its tokens and pairs of tokens, which lie between points of
the table. Points that the authors could not measure, as a stack of three layers ran out of memory
at them, are filled in up to the most tokens that they measured: twice as many rows take twice as
much. The table is the same for all rules, the search included.

A class is named by its longest sample, replicas and rule. `planned` is the number of batches that
have a plan. `whole` is the time by the rule over that of a plan found by the search, the geometric
mean of a class, and `least` the smallest, below 1 where the rule is better; `split` and
`least_split` are the same against plans that may split backward passes. `planning` is the median
processor time of the rule in ms. `best` is the fastest of all rules for each batch; `search` is the
search itself.
"""

import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from statistics import geometric_mean, median
from typing import Any, NamedTuple

import numpy as np

from a100_inputs import a100_table, batches, in_authors_rows
from against_authors import Accounted, accounted, published
from dynapipe_hpc.data.errors import InputError
from dynapipe_hpc.data.sample import Sample
from dynapipe_hpc.planner.config import PlannerConfig
from dynapipe_hpc.planner.cost.table.profile_table import LayerProfile, ProfileTable
from dynapipe_hpc.planner.from_config import chooser
from dynapipe_hpc.planner.schedule.config import RuleName
from measured import run_over_inputs

SEARCH = {"rule": "dynamic", "layouts": ("padded", "packed")}  # the [planner.batch] table of ours
EFFORT = 800_000  # eight times the default
MAX_TOKENS = 32_768  # of a micro-batch that was measured in some mode
LONGEST = 8192
COLUMNS = {
    "batches": "{:.0f}",
    "planned": "{:.0f}",
    "whole": "{:.4f}",
    "least": "{:.4f}",
    "split": "{:.4f}",
    "least_split": "{:.4f}",
    "planning": "{:.1f}",
}


class Rule(NamedTuple):
    """A rule to compare with: its [planner.batch] table, and how it is scheduled.

    Attributes:
        batch: The table.
        schedules: Schedule rules; all of ours if empty.
    """

    batch: str
    schedules: tuple[RuleName, ...] = ("1f1b",)


RULES = {
    "naive padding": Rule("naive_padding"),
    "dense packing": Rule("dense_packing"),
    "length grouped": Rule("length_grouped"),
    "token budget": Rule("token_budget"),
    "authors": Rule("authors"),
    "packed next fit": Rule("packed_next_fit"),
    "packed first fit": Rule("packed_first_fit"),
    "packed balanced": Rule("packed_balanced"),
    "packed balanced, adaptive": Rule("packed_balanced", ()),
}


class Planned(NamedTuple):
    """Predicted time of an iteration, infinite without a plan, and processor time to plan it."""

    iteration_ms: float
    planning_ms: float


Batch = Mapping[str, Planned]
"""One batch by every rule, and by the search as "whole" and "split"."""


def planned(
    devices: Accounted, batch: Mapping[str, Any], schedule: Mapping[str, Any], samples: list[Sample]
) -> Planned:
    """One batch, planned as two tables say."""
    tables = {
        "cost": {"kind": "analytic"},  # not read: costs are those of the devices
        "batch": batch,
        "schedule": schedule,
        "search": {"effort": EFFORT},
    }
    config = PlannerConfig.model_validate(tables)
    started_s = time.process_time()
    try:
        best = chooser(config, devices.cost, devices.cluster, LONGEST).choose(samples).best
        iteration_ms = best.iteration_ms
    except InputError:
        iteration_ms = np.inf
    return Planned(iteration_ms, 1e3 * (time.process_time() - started_s))


def measure(devices: Accounted, samples: list[Sample]) -> Batch:
    """One batch by all rules and by the search."""
    rules = {
        name: planned(devices, {"rule": rule.batch}, {"rules": rule.schedules}, samples)
        for name, rule in RULES.items()
    }
    found = {
        name: planned(devices, SEARCH, {"split_backward": name == "split"}, samples)
        for name in ("whole", "split")
    }
    return {**rules, **found}


def filled(table: ProfileTable) -> ProfileTable:
    """The table with points that were not measured, where they hold at most as many tokens."""
    return replace(table, layers={key: _filled(layer) for key, layer in table.layers.items()})


def _filled(layer: LayerProfile) -> LayerProfile:
    rows, tokens = layer.axes
    grids: dict[str, Any] = {name: grid.copy() for name, grid in layer.grids.items()}
    for i in range(1, len(rows)):
        few_enough = rows[i] * tokens <= MAX_TOKENS
        for grid in grids.values():
            missing = few_enough & np.isnan(grid[i])
            grid[i, missing] = rows[i] / rows[i - 1] * grid[i - 1, missing]
    return replace(layer, **grids)


def measured_classes(folder: Path) -> Iterator[tuple[str, Batch]]:
    """Name of its class, and predictions, of every batch."""
    table = filled(a100_table(folder / "profiles"))
    for entry in published(folder, "gpt"):
        devices = accounted(entry, table, folder)
        longest = entry["input"].split("_")[1].removeprefix("max")
        for samples in batches(folder, entry["input"]):
            name = f"{longest} x{entry['config']['dp']}"
            yield name, measure(devices, in_authors_rows(samples, "gpt"))


def summary(measured: Sequence[Batch]) -> dict[str, dict[str, float]]:
    """A row per rule, over batches."""
    best = [
        {**batch, "best": min(batch[name] for name in RULES), "search": batch["whole"]}
        for batch in measured
    ]
    return {name: _compared(name, best) for name in (*RULES, "best", "search")}


def _compared(name: str, measured: Sequence[Batch]) -> dict[str, float]:
    known = [batch for batch in measured if np.isfinite(batch[name].iteration_ms)]
    row: dict[str, float] = {"batches": len(measured), "planned": len(known)}
    for column, least in (("whole", "least"), ("split", "least_split")):
        ratios = [batch[name].iteration_ms / batch[column].iteration_ms for batch in known]
        row |= {column: geometric_mean(ratios or [np.nan]), least: min(ratios, default=np.nan)}
    return row | {"planning": median(batch[name].planning_ms for batch in measured)}


def measure_all(folder: Path) -> dict[str, dict[str, float]]:
    measured = list(measured_classes(folder))
    names = sorted({name for name, _ in measured})
    classes = {of: [batch for name, batch in measured if name == of] for of in names}
    for longest in dict.fromkeys(name.split()[0] for name in names):
        classes[f"{longest} all"] = [b for name, b in measured if name.split()[0] == longest]
    return {
        f"{of}: {name}": row for of, rows in classes.items() for name, row in summary(rows).items()
    }


if __name__ == "__main__":
    run_over_inputs(__doc__, measure_all, COLUMNS)
