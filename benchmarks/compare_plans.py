"""Plans against those of other rules at their best settings, and against a bound.

    python benchmarks/compare_plans.py QUESTION [FOLDER] [--json OUT.json]

FOLDER (default ../shared) holds the inputs, see a100_inputs.py, and reference/original_planner.json
with the settings of the authors' plans of the same batches: of the 6.7B GPT on 4 stages, 16 layers
on one replica and 32 on two. Where nothing else is said, all is counted as the authors do: 36 GB
per device, their accounting of memory, their link, and rows as long as theirs: a token less than
samples (docs/decisions, 23). A row is a class of batches, named by what its batches have in common;
`planning` is the median processor time of one thread in ms, from lengths to a choice.

- rules: today's rules, each at its best setting, over plans that are searched for eight times as
  long as by default, with whole (`whole`) and split backward passes (`split`); `least` is the
  smallest, below 1 where the rule is better. Rules run 1F1B, as in practice, with whole backward
  passes; "adaptive" has all our schedules. `planned` is the number of batches that have a plan;
  `best` is the fastest of all rules for each batch, `search` the search. A packed row counts as
  equal rows with its tokens and pairs of tokens, which lie between points of the table. Points that
  the authors could not measure, as a stack of three layers ran out of memory at them, are filled in
  up to the most tokens that they measured: twice as many rows take twice as much.
- gaps: the time of plans above the lower bound in %, mean (`gap`), `median` and `worst`. `trip` is
  the median share of the iteration, in %, that the longest sample's own trip through the stages
  takes, which is part of the bound; `bound` the median processor time for the bound in ms. The
  effort is that in the name. "both split" is with padded and packed
  rows and split backward passes, in the table of rules; "fused" the same with times and memory
  estimated from an A100's peak rates in place of the table of 2023: attention that stores no
  scores, for which the FLOPs of a token grow less with the length of its row.
"""

import argparse
import json
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import partial
from itertools import product
from pathlib import Path
from statistics import geometric_mean, mean, median
from typing import Any, NamedTuple

import numpy as np

from a100_inputs import (
    BOTH,
    GPT,
    Devices,
    a100_devices,
    a100_table,
    batches,
    equal_shares,
    in_authors_rows,
)
from dynapipe_hpc.data.errors import InputError
from dynapipe_hpc.data.sample import Sample
from dynapipe_hpc.plan.cluster import Cluster, Link
from dynapipe_hpc.planner.choose.chooser import Chooser
from dynapipe_hpc.planner.choose.config import SearchConfig
from dynapipe_hpc.planner.config import PlannerConfig
from dynapipe_hpc.planner.cost.analytic import analytic_cost
from dynapipe_hpc.planner.cost.config import AnalyticConfig
from dynapipe_hpc.planner.cost.table.profile_table import LayerProfile, ProfileTable
from dynapipe_hpc.planner.from_config import chooser
from dynapipe_hpc.planner.make_plans import Planner
from measured import print_table, write_json

sys.path.insert(0, str(Path(__file__).parents[1]))
from reproduce.authors.authors import AuthorsPlanner

AUTHORS_LINK = Link(latency_ms=0, bytes_per_ms=4800e9 / 8 / 1e3, full_duplex=False)
LONG_SEARCH, SECOND_OF_SEARCH = SearchConfig(effort=800_000), SearchConfig(effort=50_000_000)
MAX_TOKENS = 32_768  # of a micro-batch that was measured in some mode
LONGEST = 8192

Row = dict[str, Any]
Measured = Iterator[tuple[str, Row]]
"""Name of a class, and numbers of a batch in it."""


class Published(NamedTuple):
    """Model and devices of plans that the authors published, and the name of their batches."""

    lengths: str
    devices: Devices

    @property
    def longest(self) -> str:
        """Tokens of the longest sample."""
        return self.lengths.split("_")[1].removeprefix("max")


def published(folder: Path) -> Iterator[Published]:
    """All of the GPT that the authors planned, with the gaps of their table filled."""
    text = (folder / "reference" / "original_planner.json").read_text(encoding="utf-8")
    for entry in json.loads(text):
        if entry["input"].startswith("gpt"):
            config = entry["config"]
            cluster = Cluster(
                n_replicas=config["dp"],
                n_stages=config["pp"],
                n_shards=config["tp"],
                device_memory_bytes=config["device_memory_limit_mb"] * 1_000_000,
                link=AUTHORS_LINK,
                zero_stage=1,
            )
            shape = GPT.model_copy(update={"n_layers": config["layers"]})
            table = filled(a100_table(folder))
            devices = a100_devices(table, cluster, shape, is_smoothed=False)
            # Theirs keeps gradients in float16, so that its model leaves more room.
            n = cluster.n_replicas
            less_bytes = (1 - (2 + 6 / n) / (3 + 5 / n)) * devices.cost.static_bytes.max()
            memory_bytes = cluster.device_memory_bytes + round(less_bytes)
            roomy = cluster.model_copy(update={"device_memory_bytes": memory_bytes})
            yield Published(entry["input"], devices._replace(cluster=roomy))


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


RULES: dict[str, Row] = {
    "naive padding": {"rule": "naive_padding"},
    "dense packing": {"rule": "dense_packing"},
    "token budget": {"rule": "token_budget"},
    "packed next fit": {"rule": "packed_next_fit"},
    "packed balanced": {"rule": "packed_balanced"},
    "packed balanced, adaptive": {"rule": "packed_balanced"},
}


def by_tables(
    devices: Devices, samples: list[Sample], batch: Row, schedule: Row
) -> tuple[float, float]:
    """Predicted time of an iteration, infinite without a plan, and processor time to plan it."""
    tables = {
        "cost": {"kind": "analytic"},  # not read: costs are those of the devices
        "batch": batch,
        "schedule": schedule,
        "search": LONG_SEARCH,
    }
    config = PlannerConfig.model_validate(tables)
    return timed(chooser(config, devices.cost, devices.cluster, LONGEST), samples)


def timed(planner: Chooser, samples: list[Sample]) -> tuple[float, float]:
    """Predicted time of an iteration, infinite without a plan, and processor time to plan it."""
    started_s, iteration_ms = time.thread_time(), np.inf
    with suppress(InputError):
        iteration_ms = planner.choose(samples).best.iteration_ms
    return iteration_ms, 1e3 * (time.thread_time() - started_s)


def rules(folder: Path) -> Measured:
    ours = {"rule": "dynamic", "layouts": ("padded", "packed")}
    for each in published(folder):
        longest, replicas = each.longest, f"x{each.devices.cluster.n_replicas}"
        for samples in batches(folder, each.lengths):
            devices, rows = each.devices, in_authors_rows(samples)
            by = partial(by_tables, devices, rows)
            found = {
                name: by(table, {"rules": () if "adaptive" in name else ("1f1b",)})
                for name, table in RULES.items()
            }
            theirs = AuthorsPlanner.with_interval(devices.cost, devices.cluster)
            found["authors"] = timed(theirs, rows)
            found["best"] = min(found.values())
            found["search"] = by(ours, {})
            split_ms, _ = by(ours, {"split_backward": True})
            for name, (iteration_ms, planning_ms) in found.items():
                row = {
                    "planned": int(np.isfinite(iteration_ms)),
                    "whole": iteration_ms / found["search"][0],
                    "split": iteration_ms / split_ms,
                    "planning": planning_ms,
                }
                yield f"{longest} {replicas}: {name}", row
                yield f"{longest} all: {name}", row


def gap(planner: Planner, samples: Sequence[Sample]) -> Row:
    choice = planner.choose(samples)
    planned_ms = planner.write(0, choice)[0].prediction.iteration_ms
    started_s = time.thread_time()
    bound = planner.lower_bound(choice, samples)
    bound_ms = 1e3 * (time.thread_time() - started_s)
    trip = 100 * bound.longest_trip_ms / planned_ms
    return {"gap": 100 * (planned_ms / bound.iteration_ms - 1), "trip": trip, "bound": bound_ms}


def gaps(folder: Path) -> Measured:
    a100 = AnalyticConfig(
        flops_per_ms=2e11,
        memory_bytes_per_ms=1.5e9,
        launch_ms=0.05,
        reduction_bytes_per_ms=1e8,
        recompute=("none", "selective", "full"),
        element_bytes=2,
    )
    clusters = [
        Cluster(n_replicas=n, n_stages=4, device_memory_bytes=40_000_000_000) for n in (1, 2)
    ]
    fused = [
        Devices(GPT, each, analytic_cost(GPT, equal_shares(GPT, each), each, a100))
        for each in clusters
    ]
    kinds = {
        "both": list(published(folder)),
        "fused": [Published("gpt_max8192_gbs65536", each) for each in fused],
    }
    for kind, cases in kinds.items():
        for each, search in product(cases, (SearchConfig(), LONG_SEARCH, SECOND_OF_SEARCH)):
            planner = each.devices.planner(BOTH, search, split=True)
            replicas = f"x{each.devices.cluster.n_replicas}"
            for samples in batches(folder, each.lengths):
                used = in_authors_rows(samples) if kind == "both" else samples
                yield f"{kind} split {each.lengths} {replicas} {search.effort}", gap(planner, used)


class Column(NamedTuple):
    """A column of a table: a number of every batch of a class, and how it is summarised."""

    number: str
    summarize: Callable[[Sequence[Any]], float]
    form: str


def mean_of_finite(ratios: Sequence[float]) -> float:
    return geometric_mean([ratio for ratio in ratios if np.isfinite(ratio)] or [np.nan])


PLANNING = Column("planning", median, "{:.1f}")
QUESTIONS: dict[Callable[[Path], Measured], dict[str, Column]] = {
    rules: {
        "planned": Column("planned", sum, "{:.0f}"),
        "whole": Column("whole", mean_of_finite, "{:.4f}"),
        "least": Column("whole", min, "{:.4f}"),
        "split": Column("split", mean_of_finite, "{:.4f}"),
        "least_split": Column("split", min, "{:.4f}"),
        "planning": PLANNING,
    },
    gaps: {
        "gap": Column("gap", mean, "{:.2f}"),
        "median": Column("gap", median, "{:.2f}"),
        "worst": Column("gap", max, "{:.2f}"),
        "trip": Column("trip", median, "{:.1f}"),
        "bound": Column("bound", median, "{:.1f}"),
    },
}


def table(measured: Measured, columns: Mapping[str, Column]) -> dict[str, dict[str, float]]:
    """A row per class, in the order in which they come."""
    classes: dict[str, list[Row]] = {}
    for name, row in measured:
        classes.setdefault(name, []).append(row)
    return {
        name: {"batches": len(rows)}
        | {key: each.summarize([row[each.number] for row in rows]) for key, each in columns.items()}
        for name, rows in classes.items()
    }


def main() -> None:
    questions = {question.__name__: question for question in QUESTIONS}
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("question", choices=questions)
    parser.add_argument("folder", type=Path, nargs="?", default=Path("../shared"))
    parser.add_argument("--json", type=Path)
    arguments = parser.parse_args()
    question = questions[arguments.question]
    results = table(question(arguments.folder), QUESTIONS[question])
    forms = {name: column.form for name, column in QUESTIONS[question].items()}
    print_table(results, {"batches": "{:.0f}"} | forms)
    if arguments.json:
        write_json(arguments.json, results)


if __name__ == "__main__":
    main()
