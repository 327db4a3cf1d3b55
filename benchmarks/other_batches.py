"""Do plans stay as good on batches that nobody has looked at?

    python benchmarks/other_batches.py [FOLDER] [--json OUT.json]

Models, devices and accounting are those of against_authors.py, but batches are drawn anew: samples
of the published batches, in any order and number, until the next would exceed a token budget. There
are no published plans of these, so `ratio` is predicted time over that of the authors' planner as a
rule of this one, which authors_rule.py compares with what they published. A class is named by
model, longest sample, replicas and budget of tokens; `all` weighs classes alike. `10 ms`
and `50 ms` are efforts of the search, `split` is with backward passes split at the latter.
`worst` is the largest ratio at 10 ms; `planning` the median processor time of one thread in ms at
each effort; `gap` that of the plan at 50 ms above the lower bound, in %.
"""

import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from statistics import geometric_mean, median
from typing import Any

import numpy as np

from a100_inputs import MODELS, batches
from against_authors import EFFORTS, planner_of, published
from dynapipe_hpc.data.sample import Sample
from dynapipe_hpc.planner.baselines.authors.authors import AuthorsPlanner
from dynapipe_hpc.planner.baselines.config import AuthorsConfig
from dynapipe_hpc.planner.batch.config import DynamicConfig
from dynapipe_hpc.planner.from_config import dynamic_chooser, schedule_rules
from dynapipe_hpc.planner.make_plans import Planner
from dynapipe_hpc.planner.schedule.config import ScheduleConfig
from dynapipe_hpc.planner.search.config import SearchConfig
from measured import run_over_inputs

BUDGETS = {"gpt": (16_384, 65_536, 131_072, 262_144), "t5": (16_384, 65_536, 131_072)}
N_BATCHES = 3
SEED = 1
COLUMNS = {
    "batches": "{:.0f}",
    "10 ms": "{:.4f}",
    "worst": "{:.4f}",
    "50 ms": "{:.4f}",
    "split": "{:.4f}",
    "planning 10": "{:.1f}",
    "planning 50": "{:.1f}",
    "planning split": "{:.1f}",
    "gap": "{:.2f}",
}

Row = dict[str, float]


def drawn(pool: Sequence[Sample], budget: int, random: np.random.Generator) -> list[Sample]:
    """A batch of samples from a pool, numbered anew."""
    samples: list[Sample] = []
    while True:
        sample = pool[int(random.integers(len(pool)))]
        if sum(s.tokens for s in samples) + sample.tokens > budget:
            return samples
        samples.append(replace(sample, sample_id=len(samples)))


def measure(planner: Planner, samples: Sequence[Sample]) -> Row:
    """One batch, planned in all ways."""
    cost, cluster = planner.cost, planner.cluster
    rule = AuthorsPlanner.of(AuthorsConfig(rule="authors"), cost, cluster)
    authors = replace(planner, chooser=rule)
    theirs_ms = authors.make_plans(0, samples)[0].prediction.iteration_ms
    row: Row = {}
    for name, effort in (("10", EFFORTS[1]), ("50", EFFORTS[2]), ("split", EFFORTS[2])):
        split = name == "split"
        rules = schedule_rules(ScheduleConfig(split_backward=split))
        search = SearchConfig(effort=effort)
        chooser = dynamic_chooser(DynamicConfig(), search, rules, cost, cluster)
        searching = replace(planner, chooser=chooser, split_backward=split)
        started_s = time.thread_time()
        choice = searching.choose(samples)
        plans = searching.write(0, choice)
        row[f"planning {name}"] = 1e3 * (time.thread_time() - started_s)
        row[name] = plans[0].prediction.iteration_ms / theirs_ms
        if name == "50":
            bound_ms = searching.lower_bound(choice, samples).iteration_ms
            row["gap"] = 100 * (row[name] * theirs_ms / bound_ms - 1)
    return row


def measured_classes(folder: Path) -> Iterator[tuple[str, list[Row]]]:
    """Name and batches of every class."""
    random = np.random.default_rng(SEED)
    for family in MODELS:
        for longest, entries in by_longest(folder, family).items():
            names = dict.fromkeys(entry["input"] for entry in entries)
            pool = [s for name in names for batch in batches(folder, name) for s in batch]
            configs = {entry["config"]["dp"]: entry for entry in entries}
            for budget in BUDGETS[family]:
                formed = [drawn(pool, budget, random) for _ in range(N_BATCHES)]
                for n_replicas, entry in configs.items():
                    planner = planner_of(folder, entry, effort=0)
                    name = f"{family} {longest} x{n_replicas} {budget // 1024}k"
                    yield name, [measure(planner, samples) for samples in formed]


def by_longest(folder: Path, family: str) -> Mapping[str, list[dict[str, Any]]]:
    """The published plans of a model by the longest sample of their input."""
    found: dict[str, list[dict[str, Any]]] = {}
    for entry in published(folder, family):
        found.setdefault(entry["input"].split("_")[1], []).append(entry)
    return found


def measure_all(folder: Path) -> dict[str, Row]:
    classes = dict(measured_classes(folder))
    rows = {name: summary(measured) for name, measured in classes.items()}
    for family in MODELS:
        rows[f"{family} all"] = summary(
            [
                row
                for name, measured in classes.items()
                if name.startswith(family)
                for row in measured
            ]
        )
    return rows


def summary(measured: Sequence[Row]) -> Row:
    planning = {n: median(row[n] for row in measured) for n in COLUMNS if n.startswith("planning")}
    return {
        "batches": len(measured),
        "10 ms": geometric_mean(row["10"] for row in measured),
        "worst": max(row["10"] for row in measured),
        "50 ms": geometric_mean(row["50"] for row in measured),
        "split": geometric_mean(row["split"] for row in measured),
        **planning,
        "gap": median(row["gap"] for row in measured),
    }


if __name__ == "__main__":
    run_over_inputs(__doc__, measure_all, COLUMNS)
