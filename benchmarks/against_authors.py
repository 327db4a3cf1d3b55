"""Planned iterations against the plans that the authors of the paper published.

    python benchmarks/against_authors.py [FOLDER] [--json OUT.json]

FOLDER (default ../shared) holds the inputs, see a100_inputs.py, and reference/original_planner.json
with the authors' plans of the same batches. Both are counted as the authors do: 36 GB per device,
their accounting of memory, their link, and rows as long as theirs: a token less than its samples
in a GPT, two more than its targets in a T5 (docs/decisions, 23). A class is named by its model,
longest sample, replicas, effort of the search, and whether backward passes may be split. `ratio` is
predicted time over theirs, the geometric mean of a class, `worst` its largest; `planning` is the
median processor time of one thread in ms, from lengths to the checked plans of all ranks.
"""

import json
import time
from collections.abc import Iterator, Mapping
from functools import cache
from pathlib import Path
from statistics import geometric_mean, median
from typing import Any, NamedTuple

from a100_inputs import MODELS, a100_table, batches, equal_shares, in_authors_rows
from dynapipe_hpc.architecture.model_shape import ModelShape
from dynapipe_hpc.architecture.placement import Placement
from dynapipe_hpc.data.sample import Sample
from dynapipe_hpc.plan.cluster import Cluster, Link
from dynapipe_hpc.planner.baselines.authors.authors_accounting import AUTHORS
from dynapipe_hpc.planner.batch.config import DynamicConfig
from dynapipe_hpc.planner.cost.analytic import AnalyticCost
from dynapipe_hpc.planner.cost.config import ProfiledConfig
from dynapipe_hpc.planner.cost.profiled import ProfiledCost
from dynapipe_hpc.planner.cost.table.profile_table import ProfileTable
from dynapipe_hpc.planner.from_config import dynamic_chooser, schedule_rules
from dynapipe_hpc.planner.make_plans import Planner
from dynapipe_hpc.planner.schedule.config import ScheduleConfig
from dynapipe_hpc.planner.search.config import SearchConfig
from measured import run_over_inputs

EFFORTS = (0, 100_000, 800_000)  # batch rules only, the default, and about 50 ms
SETTINGS = (  # family, effort, whether backward passes may be split
    ("gpt", EFFORTS[0], False),
    ("gpt", EFFORTS[1], False),
    ("gpt", EFFORTS[2], False),
    ("gpt", EFFORTS[2], True),
    ("t5", EFFORTS[1], False),
    ("t5", EFFORTS[2], False),
)
AUTHORS_LINK = Link(latency_ms=0, bytes_per_ms=4800e9 / 8 / 1e3, full_duplex=False)
COLUMNS = {"batches": "{:.0f}", "ratio": "{:.4f}", "worst": "{:.4f}", "planning": "{:.2f}"}

Rows = dict[str, dict[str, float]]


class Accounted(NamedTuple):
    """A model on devices, with its costs there: as the authors count them, or by its table."""

    shape: ModelShape
    placement: Placement
    cluster: Cluster
    cost: ProfiledCost | AnalyticCost


def accounted(entry: Mapping[str, Any], table: ProfileTable, folder: Path) -> Accounted:
    """The model and the devices of some of the authors' plans."""
    config = entry["config"]
    _, shape = MODELS[family_of(entry)]
    shape = shape.model_copy(update={"n_layers": config["layers"]})
    cluster = Cluster(
        n_replicas=config["dp"],
        n_stages=config["pp"],
        n_shards=config["tp"],
        device_memory_bytes=config["device_memory_limit_mb"] * 1_000_000,
        link=AUTHORS_LINK,
    )
    config_of_costs = ProfiledConfig(path=folder, recompute=("none", "selective", "full"))
    placement = equal_shares(shape, cluster)
    cost = ProfiledCost(table, shape, placement, cluster, config_of_costs, AUTHORS)
    return Accounted(shape, placement, cluster, cost)


def family_of(entry: Mapping[str, Any]) -> str:
    """The model of some of the authors' plans: gpt or t5."""
    return str(entry["input"]).split("_")[0]


def planner_of(
    folder: Path, entry: Mapping[str, Any], effort: int, *, split: bool = False
) -> Planner:
    """A planner for the model and the devices of some of the authors' plans."""
    table = a100_table(folder / "profiles", family_of(entry))
    return planner_for(accounted(entry, table, folder), DynamicConfig(), effort, split=split)


def planner_for(
    devices: Accounted, batch: DynamicConfig, effort: int, *, split: bool = False
) -> Planner:
    """A planner for a model on devices."""
    shape, placement, cluster, cost = devices
    rules = schedule_rules(ScheduleConfig(split_backward=split))
    chooser = dynamic_chooser(batch, SearchConfig(effort=effort), rules, cost, cluster)
    boundaries = placement.boundaries(shape)
    return Planner(chooser, cost, cluster, shape.hidden_size, boundaries, split_backward=split)


def measure(planner: Planner, samples: list[Sample], authors_ms: float) -> dict[str, float]:
    """One batch: its predicted time over the authors', and what planning took."""
    started_s = time.process_time()
    plans = planner.make_plans(0, samples)
    planning_ms = 1e3 * (time.process_time() - started_s)
    return {"ratio": plans[0].prediction.iteration_ms / authors_ms, "planning": planning_ms}


def measured_classes(
    folder: Path, family: str, effort: int, *, split: bool
) -> Iterator[tuple[str, dict[str, float]]]:
    """Name of its class, and numbers, of every batch."""
    for entry in published(folder, family):
        planner = planner_of(folder, entry, effort, split=split)
        longest = entry["input"].split("_")[1]
        name = f"{family} {longest} x{entry['config']['dp']} {effort}{' split' if split else ''}"
        for samples, batch in zip(batches(folder, entry["input"]), entry["batches"], strict=True):
            authors_ms = max(replica["makespan_ms"] for replica in batch["replicas"])
            yield name, measure(planner, in_authors_rows(samples, family), authors_ms)


@cache
def published(folder: Path, family: str) -> list[dict[str, Any]]:
    """The authors' plans of a model, gpt or t5."""
    text = (folder / "reference" / "original_planner.json").read_text(encoding="utf-8")
    return [entry for entry in json.loads(text) if entry["input"].startswith(family)]


def measure_all(folder: Path) -> Rows:
    rows: Rows = {}
    for family, effort, split in SETTINGS:
        measured = list(measured_classes(folder, family, effort, split=split))
        for name in dict.fromkeys(name for name, _ in measured):
            rows[name] = summary([row for of, row in measured if of == name])
        name = f"{family} all {effort}{' split' if split else ''}"
        rows[name] = summary([row for _, row in measured])
    return rows


def summary(batches: list[dict[str, float]]) -> dict[str, float]:
    ratios = [row["ratio"] for row in batches]
    return {
        "batches": len(batches),
        "ratio": geometric_mean(ratios),
        "worst": max(ratios),
        "planning": median(row["planning"] for row in batches),
    }


if __name__ == "__main__":
    run_over_inputs(__doc__, measure_all, COLUMNS)
