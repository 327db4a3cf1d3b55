"""How far above the lower bound are plans that are searched for long?

    python benchmarks/bound_gaps.py [FOLDER] [--json OUT.json]

FOLDER, models, devices and accounting are those of against_authors.py. Every batch is planned with
an effort of about a second of one core. A class is named by model, longest sample and replicas;
`gap` is the mean of the predicted times of its plans above the bound, `worst` the largest, in %.
`bound` is the median processor time of one thread in ms for the bound.
"""

import time
from collections.abc import Iterator
from pathlib import Path
from statistics import mean, median

from a100_inputs import MODELS, batches
from against_authors import planner_of, published
from dynapipe_hpc.data.sample import Sample
from dynapipe_hpc.planner.make_plans import Planner
from measured import run_over_inputs

EFFORT = 50_000_000
COLUMNS = {"batches": "{:.0f}", "gap": "{:.2f}", "worst": "{:.2f}", "bound": "{:.1f}"}

Row = dict[str, float]


def measure(planner: Planner, samples: list[Sample]) -> Row:
    choice = planner.choose(samples)
    planned_ms = planner.write(0, choice)[0].prediction.iteration_ms
    started_s = time.thread_time()
    bound_ms = planner.lower_bound_ms(choice, samples)
    took_ms = 1e3 * (time.thread_time() - started_s)
    return {"gap": 100 * (planned_ms / bound_ms - 1), "bound": took_ms}


def measured_classes(folder: Path) -> Iterator[tuple[str, Row]]:
    """Name of its class, and numbers, of every batch."""
    for family in MODELS:
        for entry in published(folder, family):
            planner = planner_of(folder, entry, EFFORT)
            name = f"{family} {entry['input'].split('_')[1]} x{entry['config']['dp']}"
            for samples in batches(folder, entry["input"])[: len(entry["batches"])]:
                yield name, measure(planner, samples)


def measure_all(folder: Path) -> dict[str, Row]:
    measured = list(measured_classes(folder))
    names = dict.fromkeys(name for name, _ in measured)
    return {name: summary([row for of, row in measured if of == name]) for name in names}


def summary(rows: list[Row]) -> Row:
    gaps = [row["gap"] for row in rows]
    return {
        "batches": len(rows),
        "gap": mean(gaps),
        "worst": max(gaps),
        "bound": median(row["bound"] for row in rows),
    }


if __name__ == "__main__":
    run_over_inputs(__doc__, measure_all, COLUMNS)
