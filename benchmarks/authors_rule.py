"""Distance of the authors' planner, as a rule of this one, from the plans they published.

    python benchmarks/authors_rule.py [FOLDER] [--json OUT.json]

Inputs and settings are those of against_authors.py, and those of a T5 11B of which every layer
is cut over eight devices. A class is named by model, longest sample, replicas, and distance of
the limits on a micro-batch's time: 5 ms as in their artifact, or 0.005 ms as in the paper. Their
plans were made with 5 ms. `ratio` is predicted time over theirs, the geometric mean of a class,
`least` and `worst` its ends; `planning` is the median processor time of one thread in ms, from
lengths to the checked plans of all ranks, and `theirs` what was measured of their planner.
"""

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from statistics import geometric_mean, median

from a100_inputs import MODELS, batches, in_authors_rows
from against_authors import measure, planner_of, published
from dynapipe_hpc.planner.baselines.authors.authors import AuthorsPlanner
from dynapipe_hpc.planner.baselines.config import AuthorsConfig
from measured import run_over_inputs

INTERVALS_MS = (5, 0.005)
COLUMNS = {
    "batches": "{:.0f}",
    "ratio": "{:.4f}",
    "least": "{:.4f}",
    "worst": "{:.4f}",
    "planning": "{:.1f}",
    "theirs": "{:.0f}",
}

Row = dict[str, float]


def measured_classes(folder: Path, interval_ms: float) -> Iterator[tuple[str, Row]]:
    """Name of its class, and numbers, of every batch."""
    config = AuthorsConfig(rule="authors", interval_ms=interval_ms)
    for entry in (entry for family in MODELS for entry in published(folder, family)):
        planner = planner_of(folder, entry, effort=0)
        rule = AuthorsPlanner.of(config, planner.cost, planner.cluster)
        planner = replace(planner, chooser=rule)
        family, longest, _ = entry["input"].split("_")
        name = f"{family} {longest} x{entry['config']['dp']} {interval_ms:g} ms"
        for samples, batch in zip(batches(folder, entry["input"]), entry["batches"], strict=True):
            # The cut of a GPT is of whole samples; its rows are a token longer than theirs.
            cut = in_authors_rows(samples, family) if family == "t5" else samples
            row = measure(planner, cut, batch["predicted_iteration_ms"])
            yield name, {**row, "theirs": 1e3 * batch["planning_cpu_s"]}


def measure_all(folder: Path) -> dict[str, Row]:
    rows: dict[str, Row] = {}
    for interval_ms in INTERVALS_MS:
        measured = list(measured_classes(folder, interval_ms))
        for name in dict.fromkeys(name for name, _ in measured):
            rows[name] = summary([row for of, row in measured if of == name])
        rows[f"all {interval_ms:g} ms"] = summary([row for _, row in measured])
    return rows


def summary(measured: list[Row]) -> Row:
    ratios = [row["ratio"] for row in measured]
    return {
        "batches": len(measured),
        "ratio": geometric_mean(ratios),
        "least": min(ratios),
        "worst": max(ratios),
        "planning": median(row["planning"] for row in measured),
        "theirs": median(row["theirs"] for row in measured),
    }


if __name__ == "__main__":
    run_over_inputs(__doc__, measure_all, COLUMNS)
