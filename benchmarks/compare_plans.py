"""Plans against those of the paper's authors, of other rules and settings, and against a bound.

    python benchmarks/compare_plans.py QUESTION [FOLDER] [--json OUT.json]

FOLDER (default ../shared) holds the inputs, see a100_inputs.py, and reference/original_planner.json
with the authors' plans of the same batches: of the 6.7B GPT on 4 stages, 16 layers on one replica
and 32 on two, and of the 11B T5 on 4 stages of 8 shards. Where nothing else is said, all is counted
as the authors do: 36 GB per device, their accounting of memory, their link, and rows as long as
theirs: a token less than its samples in a GPT, two more than its targets in a T5 (docs/decisions,
23); and the effort of the search is the default. A row is a class of batches, named by what its
batches have in common. `ratio` is the predicted time of an iteration over that of another plan, the
geometric mean of a class, `worst` and `least` its ends; `planning` is the median processor time of
one thread in ms, from lengths to the checked plans of all ranks.

- authors: our plans over the authors', by effort and whether backward passes may be split.
- authors_rule: their planner, as reproduce/authors has it, over the plans they published, which
  were made with limits 5 ms apart, as in their artifact; in the paper they are 0.005 ms apart.
  `theirs` is the time that their planner took.
- layouts: padded and packed rows over padded ones only, in rows as long as samples. `gap` is the
  median of the time above the lower bound in %, for a T5 that of the plan's own micro-batches;
  `packed` the fraction of micro-batches that are packed, `padded` the planning of padded ones.
- shapes: packed rows padded to a multiple of tokens over multiples of 8, with 65,536 tokens an
  iteration. `shapes` is the number of different shapes in all iterations together, `most` what it
  can be at most.
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
  effort is about a second of one core, or that in the name. "both split" is with padded and packed
  rows and split backward passes, in the table of rules; "own" the same with the memory that the
  table says, which passes need while they run, too; "fused" with times estimated from an A100's
  peak rates in place of the table of 2023: attention that stores no scores, for which the FLOPs of
  a token grow less with the length of its row.
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
    MODELS,
    PADDED,
    Devices,
    a100_cluster,
    a100_devices,
    a100_table,
    batches,
    in_authors_rows,
)
from dynapipe_hpc.data.errors import InputError
from dynapipe_hpc.data.microbatch import Layout
from dynapipe_hpc.data.sample import Sample
from dynapipe_hpc.plan.cluster import Cluster, Link
from dynapipe_hpc.plan.rank_plan import RankPlan
from dynapipe_hpc.planner.batch.config import DynamicConfig
from dynapipe_hpc.planner.choose.chooser import Chooser
from dynapipe_hpc.planner.config import PlannerConfig
from dynapipe_hpc.planner.cost.analytic import analytic_cost
from dynapipe_hpc.planner.cost.config import AnalyticConfig
from dynapipe_hpc.planner.cost.table.profile_table import LayerProfile, ProfileTable
from dynapipe_hpc.planner.from_config import chooser
from dynapipe_hpc.planner.make_plans import Planner
from dynapipe_hpc.planner.search.config import SearchConfig
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
    """Plans that the authors published, or would have, of a file of batches.

    Attributes:
        lengths: Name of the file.
        devices: Their model and devices.
        plans: Their plans of its batches.
    """

    lengths: str
    devices: Devices
    plans: Sequence[Mapping[str, Any]] = ()

    @property
    def family(self) -> str:
        """The model, gpt or t5."""
        return self.lengths.split("_")[0]

    @property
    def name(self) -> str:
        """Model, longest sample and replicas."""
        family, longest, _ = self.lengths.split("_")
        return f"{family} {longest} x{self.devices.cluster.n_replicas}"


def published(
    folder: Path, families: Sequence[str] = ("gpt", "t5"), *, with_gaps: bool = True
) -> Iterator[Published]:
    """All that the authors planned; their table as measured, or with its gaps filled."""
    text = (folder / "reference" / "original_planner.json").read_text(encoding="utf-8")
    for family, entry in product(families, json.loads(text)):
        if entry["input"].startswith(family):
            config = entry["config"]
            table = a100_table(folder, family)
            cluster = Cluster(
                n_replicas=config["dp"],
                n_stages=config["pp"],
                n_shards=config["tp"],
                device_memory_bytes=config["device_memory_limit_mb"] * 1_000_000,
                link=AUTHORS_LINK,
                zero_stage=1,
            )
            shape = MODELS[family][1].model_copy(update={"n_layers": config["layers"]})
            table = table if with_gaps else filled(table)
            devices = a100_devices(table, cluster, shape, is_smoothed=False)
            # Theirs keeps gradients in float16, so that its model leaves more room.
            n = cluster.n_replicas
            less_bytes = (1 - (2 + 6 / n) / (3 + 5 / n)) * devices.cost.static_bytes.max()
            memory_bytes = cluster.device_memory_bytes + round(less_bytes)
            roomy = cluster.model_copy(update={"device_memory_bytes": memory_bytes})
            yield Published(entry["input"], devices._replace(cluster=roomy), entry["batches"])


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


def planned(planner: Planner, samples: Sequence[Sample]) -> tuple[list[RankPlan], float]:
    """Plans of the iteration, and processor time of their planning in ms."""
    started_s = time.thread_time()
    plans = planner.make_plans(0, samples)
    return plans, 1e3 * (time.thread_time() - started_s)


def over(planner: Planner, samples: Sequence[Sample], other_ms: float) -> Row:
    """One batch: its predicted time over another, and the time of planning."""
    plans, planning_ms = planned(planner, samples)
    return {"ratio": plans[0].prediction.iteration_ms / other_ms, "planning": planning_ms}


def authors(folder: Path) -> Measured:
    split_or_not = {"gpt": ((0, False), (100_000, False), (800_000, False), (800_000, True))}
    for each in published(folder):
        for effort, split in split_or_not.get(each.family, ((100_000, False), (800_000, False))):
            planner = each.devices.planner(search=SearchConfig(effort=effort), split=split)
            end = f"{effort}{' split' if split else ''}"
            for samples, plan in zip(batches(folder, each.lengths), each.plans, strict=True):
                authors_ms = max(replica["makespan_ms"] for replica in plan["replicas"])
                row = over(planner, in_authors_rows(samples, each.family), authors_ms)
                yield f"{each.name} {end}", row
                yield f"{each.family} all {end}", row


def authors_rule(folder: Path) -> Measured:
    for interval_ms, each in product((5, 0.005), published(folder)):
        planner, devices = each.devices.planner(), each.devices
        rule = AuthorsPlanner.with_interval(devices.cost, devices.cluster, interval_ms)
        for samples, plan in zip(batches(folder, each.lengths), each.plans, strict=True):
            # The cut of a GPT is of whole samples; its rows are a token longer than theirs.
            cut = in_authors_rows(samples, "t5") if each.family == "t5" else samples
            row = over(replace(planner, chooser=rule), cut, plan["predicted_iteration_ms"])
            row["theirs"] = 1e3 * plan["planning_cpu_s"]
            yield f"{each.name} {interval_ms:g} ms", row
            yield f"all {interval_ms:g} ms", row


def layouts(folder: Path) -> Measured:
    for split, each in product((False, True), published(folder)):
        both, padded = (each.devices.planner(batch, split=split) for batch in (BOTH, PADDED))
        family, longest, tokens = each.lengths.split("_")
        replicas = f"x{each.devices.cluster.n_replicas}{' split' if split else ''}"
        for samples in batches(folder, each.lengths):
            plans, padded_ms = planned(padded, samples)
            row = over(both, samples, plans[0].prediction.iteration_ms)
            pipelines = both.choose(samples).pipelines
            formed = [m.layout for pipeline in pipelines for m in pipeline.microbatches]
            row["gap"] = gap(both, samples)["gap"]
            row["packed"] = mean(layout is Layout.PACKED for layout in formed)
            yield f"{family} {longest} {tokens} {replicas}", row | {"padded": padded_ms}


def shapes(folder: Path) -> Measured:
    multiples, n_tokens = (8, 32, 128, 256, 512, 1024, 2048), 65536
    for each in published(folder, ("gpt",)):
        name = each.name.removeprefix("gpt ")
        plain_ms = [0.0] * 3
        for multiple in multiples if each.lengths.endswith(str(n_tokens)) else ():
            batch = DynamicConfig(layouts=("packed",), token_multiple=multiple)
            planner = each.devices.planner(batch)
            for i, samples in enumerate(batches(folder, each.lengths)):
                plans, planning_ms = planned(planner, samples)
                iteration_ms = plans[0].prediction.iteration_ms
                if multiple == multiples[0]:
                    plain_ms[i] = iteration_ms
                yield (
                    f"{name} {multiple}",
                    {
                        "ratio": iteration_ms / plain_ms[i],
                        "shapes": {m.row_tokens for plan in plans for m in plan.microbatches},
                        "most": -(-n_tokens // multiple),
                        "planning": planning_ms,
                    },
                )


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
    for each in published(folder, ("gpt",), with_gaps=False):
        longest, replicas = each.name.removeprefix("gpt max").split()
        for samples in batches(folder, each.lengths):
            devices, rows = each.devices, in_authors_rows(samples, "gpt")
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
    for each in published(folder):
        planner = each.devices.planner(search=SECOND_OF_SEARCH)
        for samples in batches(folder, each.lengths):
            yield each.name, gap(planner, samples)
    a100 = AnalyticConfig(
        flops_per_ms=2e11,
        memory_bytes_per_ms=1.5e9,
        launch_ms=0.05,
        reduction_bytes_per_ms=1e8,
        recompute=("none", "selective", "full"),
        element_bytes=2,
    )
    long = "gpt_max8192_gbs65536"
    own = [a100_devices(a100_table(folder), a100_cluster(n)) for n in (1, 2)]
    fused = [
        Devices(GPT, each.cluster, analytic_cost(GPT, each.placement, each.cluster, a100))
        for each in own
    ]
    kinds = {
        "both": list(published(folder, ("gpt",), with_gaps=False)),
        "own": [Published(long, each) for each in own],
        "fused": [Published(long, each) for each in fused],
    }
    for kind, cases in kinds.items():
        for each, search in product(cases, (SearchConfig(), LONG_SEARCH, SECOND_OF_SEARCH)):
            planner = each.devices.planner(BOTH, search, split=True)
            replicas = f"x{each.devices.cluster.n_replicas}"
            for samples in batches(folder, each.lengths):
                used = in_authors_rows(samples, "gpt") if kind == "both" else samples
                yield f"{kind} split {each.lengths} {replicas} {search.effort}", gap(planner, used)


class Column(NamedTuple):
    """A column of a table: a number of every batch of a class, and how it is summarised."""

    number: str
    summarize: Callable[[Sequence[Any]], float]
    form: str


def mean_of_finite(ratios: Sequence[float]) -> float:
    return geometric_mean([ratio for ratio in ratios if np.isfinite(ratio)] or [np.nan])


def number_of_shapes(rows: Sequence[set[int]]) -> int:
    return len(set.union(*rows))


RATIO = Column("ratio", geometric_mean, "{:.4f}")
WORST, LEAST = Column("ratio", max, "{:.4f}"), Column("ratio", min, "{:.4f}")
PLANNING = Column("planning", median, "{:.1f}")
QUESTIONS: dict[Callable[[Path], Measured], dict[str, Column]] = {
    authors: {"ratio": RATIO, "worst": WORST, "planning": PLANNING},
    authors_rule: {
        "ratio": RATIO,
        "least": LEAST,
        "worst": WORST,
        "planning": PLANNING,
        "theirs": Column("theirs", median, "{:.0f}"),
    },
    layouts: {
        "ratio": RATIO,
        "worst": WORST,
        "gap": Column("gap", median, "{:.2f}"),
        "packed": Column("packed", mean, "{:.2f}"),
        "planning": PLANNING,
        "padded": Column("padded", median, "{:.1f}"),
    },
    shapes: {
        "ratio": RATIO,
        "worst": WORST,
        "shapes": Column("shapes", number_of_shapes, "{:,.0f}"),
        "most": Column("most", max, "{:,.0f}"),
        "planning": PLANNING,
    },
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
