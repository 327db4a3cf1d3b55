"""Gaps of plans that are searched for long above the lower bound.

    python benchmarks/bound_gaps.py [FOLDER] [--json OUT.json]

FOLDER, models, devices and accounting are those of against_authors.py. Every batch is planned with
an effort of about a second of one core. A class is named by model, longest sample and replicas;
`gap` is the mean of the predicted times of its plans above the bound, `median` their median and
`worst` the largest, in %. `trip` is the median share of the iteration, in %, that the longest
sample's own trip through the stages takes, which is part of the bound. `bound` is the median
processor time of one thread in ms for the bound.

"both split" is with padded and packed rows and split backward passes, in the table of rules.py, by
file of lengths and effort of the search. "own" is the same with the memory that the table says,
which passes need while they run, too, and with all modes of recomputation. "fused" is with times
estimated from an A100's peak rates in place of the table of 2023: attention that stores no scores,
for which the FLOPs of a token grow less with the length of its row.
"""

import time
from collections.abc import Iterator
from pathlib import Path
from statistics import mean, median

from a100_inputs import (
    GPT,
    MODELS,
    a100_cluster,
    a100_cost,
    a100_table,
    batches,
    equal_shares,
    in_authors_rows,
)
from against_authors import Accounted, accounted, planner_for, planner_of, published
from dynapipe_hpc.data.sample import Sample
from dynapipe_hpc.planner.batch.config import DynamicConfig
from dynapipe_hpc.planner.cost.analytic import AnalyticCost
from dynapipe_hpc.planner.cost.config import AnalyticConfig
from dynapipe_hpc.planner.make_plans import Planner
from measured import run_over_inputs
from rules import filled

EFFORT = 50_000_000
EFFORTS_OF_BOTH = (100_000, 800_000, EFFORT)  # the default, and eight times as much
A100 = AnalyticConfig(
    flops_per_ms=2e11,
    memory_bytes_per_ms=1.5e9,
    launch_ms=0.05,
    reduction_bytes_per_ms=1e8,
    recompute=("none", "selective", "full"),
    element_bytes=2,
)
LONG = "gpt_max8192_gbs65536"
BOTH = DynamicConfig(layouts=("padded", "packed"))
COLUMNS = {
    "batches": "{:.0f}",
    "gap": "{:.2f}",
    "median": "{:.2f}",
    "worst": "{:.2f}",
    "trip": "{:.1f}",
    "bound": "{:.1f}",
}

Row = dict[str, float]


def measure(planner: Planner, samples: list[Sample]) -> Row:
    choice = planner.choose(samples)
    planned_ms = planner.write(0, choice)[0].prediction.iteration_ms
    started_s = time.thread_time()
    bound = planner.lower_bound(choice, samples)
    took_ms = 1e3 * (time.thread_time() - started_s)
    return {
        "gap": 100 * (planned_ms / bound.iteration_ms - 1),
        "trip": 100 * bound.longest_trip_ms / planned_ms,
        "bound": took_ms,
    }


def measured_classes(folder: Path) -> Iterator[tuple[str, Row]]:
    """Name of its class, and numbers, of every batch."""
    for family in MODELS:
        for entry in published(folder, family):
            planner = planner_of(folder, entry, EFFORT)
            name = f"{family} {entry['input'].split('_')[1]} x{entry['config']['dp']}"
            for samples in batches(folder, entry["input"])[: len(entry["batches"])]:
                yield name, measure(planner, samples)


def classes_of_both(folder: Path) -> Iterator[tuple[str, Row]]:
    """The same of plans with both layouts and split backward passes."""
    table = filled(a100_table(folder / "profiles"))
    for entry in published(folder, "gpt"):
        devices = accounted(entry, table, folder)
        for effort in EFFORTS_OF_BOTH:
            planner = planner_for(devices, BOTH, effort, split=True)
            name = f"both split {entry['input']} x{entry['config']['dp']} {effort}"
            for samples in batches(folder, entry["input"]):
                yield name, measure(planner, in_authors_rows(samples, "gpt"))


def classes_of_own_memory(folder: Path) -> Iterator[tuple[str, Row]]:
    """The same of plans in whose memory passes need more while they run, of the longest samples."""
    for n_replicas in (1, 2):
        cluster = a100_cluster(n_replicas)
        cost = a100_cost(folder, cluster, ("none", "selective", "full"))
        devices = Accounted(GPT, equal_shares(GPT, cluster), cluster, cost)
        for effort in EFFORTS_OF_BOTH:
            planner = planner_for(devices, BOTH, effort, split=True)
            for samples in batches(folder, LONG):
                yield f"own split {LONG} x{n_replicas} {effort}", measure(planner, samples)


def classes_of_fused_attention(folder: Path) -> Iterator[tuple[str, Row]]:
    """The same with estimated times, of the longest samples."""
    for n_replicas in (1, 2):
        cluster = a100_cluster(n_replicas)
        placement = equal_shares(GPT, cluster)
        cost = AnalyticCost(GPT, placement, cluster, A100)
        devices = Accounted(GPT, placement, cluster, cost)
        for effort in EFFORTS_OF_BOTH:
            planner = planner_for(devices, BOTH, effort, split=True)
            for samples in batches(folder, LONG):
                yield f"fused split {LONG} x{n_replicas} {effort}", measure(planner, samples)


def measure_all(folder: Path) -> dict[str, Row]:
    measured = [
        *measured_classes(folder),
        *classes_of_both(folder),
        *classes_of_own_memory(folder),
        *classes_of_fused_attention(folder),
    ]
    names = dict.fromkeys(name for name, _ in measured)
    return {name: summary([row for of, row in measured if of == name]) for name in names}


def summary(rows: list[Row]) -> Row:
    gaps = [row["gap"] for row in rows]
    return {
        "batches": len(rows),
        "gap": mean(gaps),
        "median": median(gaps),
        "worst": max(gaps),
        "trip": median(row["trip"] for row in rows),
        "bound": median(row["bound"] for row in rows),
    }


if __name__ == "__main__":
    run_over_inputs(__doc__, measure_all, COLUMNS)
