"""Planned iterations of packed and padded micro-batches, against padded ones only.

    python benchmarks/layouts.py [FOLDER] [--json OUT.json]

FOLDER (default ../shared) holds the inputs, see a100_inputs.py. The 6.7B GPT on 4 stages of 36 GB,
16 layers on one replica and 32 on two, and the 11B T5 on 4 stages of 8 shards, as in the plans of
the paper's authors, whose link and accounting of memory are used; a packed micro-batch costs as
much as equal rows with its tokens and pairs. A class is named by family, longest sample, tokens of
a batch, replicas, and whether backward passes may be split. `ratio` is the predicted time with both
layouts over that with padded rows only, the geometric mean of a class, `worst` its largest; `gap`
is the median of the time above the lower bound in %, for a T5 that of the plan's own micro-batches;
`packed` is the fraction of micro-batches that are packed; `planning` and `padded` are medians of
the processor time of one thread in ms, from lengths to the checked plans, with both layouts and
with padded rows only. The effort of the search is the default.
"""

import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from statistics import geometric_mean, mean, median
from typing import NamedTuple

from a100_inputs import MODELS, T5, a100_table, batches, equal_shares
from against_authors import AUTHORS_LINK
from dynapipe_hpc.data.microbatch import Layout
from dynapipe_hpc.data.sample import Sample
from dynapipe_hpc.plan.cluster import Cluster
from dynapipe_hpc.plan.rank_plan import RankPlan
from dynapipe_hpc.planner.baselines.authors.authors_accounting import AUTHORS
from dynapipe_hpc.planner.batch.config import DynamicConfig, LayoutName
from dynapipe_hpc.planner.batch.row_length import ROW_MULTIPLE
from dynapipe_hpc.planner.cost.config import ProfiledConfig
from dynapipe_hpc.planner.cost.profiled import ProfiledCost
from dynapipe_hpc.planner.from_config import dynamic_chooser, schedule_rules
from dynapipe_hpc.planner.make_plans import Planner
from dynapipe_hpc.planner.schedule.config import ScheduleConfig
from dynapipe_hpc.planner.search.config import SearchConfig
from measured import run_over_inputs


class Size(NamedTuple):
    """Layers of a model, of each kind, and the ranks that run it on 4 stages."""

    n_layers: int
    n_replicas: int
    n_shards: int = 1


GPT_INPUTS = (
    "gpt_max2048_gbs16384",
    "gpt_max2048_gbs65536",
    "gpt_max2048_gbs262144",
    "gpt_max8192_gbs65536",
)
CLASSES = (
    (Size(16, n_replicas=1), GPT_INPUTS),
    (Size(32, n_replicas=2), GPT_INPUTS),
    (Size(T5.n_layers, n_replicas=1, n_shards=8), ("t5_max2048_gbs65536",)),
)
PADDED: tuple[LayoutName, ...] = ("padded",)
BOTH: tuple[LayoutName, ...] = ("padded", "packed")
COLUMNS = {
    "batches": "{:.0f}",
    "ratio": "{:.4f}",
    "worst": "{:.4f}",
    "gap": "{:.2f}",
    "packed": "{:.2f}",
    "planning": "{:.1f}",
    "padded": "{:.1f}",
}

Row = dict[str, float]


def planner_of(
    folder: Path,
    family: str,
    size: Size,
    layouts: tuple[LayoutName, ...],
    *,
    split: bool,
    token_multiple: int = ROW_MULTIPLE,
) -> Planner:
    """A planner with the authors' devices and accounting."""
    _, shape = MODELS[family]
    shape = shape.model_copy(update={"n_layers": size.n_layers})
    cluster = Cluster(
        n_replicas=size.n_replicas,
        n_stages=4,
        n_shards=size.n_shards,
        device_memory_bytes=36_000_000_000,
        link=AUTHORS_LINK,
    )
    config = ProfiledConfig(path=folder, recompute=("none", "selective", "full"))
    placement = equal_shares(shape, cluster)
    table = a100_table(folder / "profiles", family)
    cost = ProfiledCost(table, shape, placement, cluster, config, AUTHORS)
    rules = schedule_rules(ScheduleConfig(split_backward=split))
    batch = DynamicConfig(layouts=layouts, token_multiple=token_multiple)
    chooser = dynamic_chooser(batch, SearchConfig(), rules, cost, cluster)
    boundaries = placement.boundaries(shape)
    return Planner(chooser, cost, cluster, shape.hidden_size, boundaries, split_backward=split)


def measure(both: Planner, padded: Planner, samples: Sequence[Sample]) -> Row:
    """One batch."""
    found = [planned(planner, samples) for planner in (both, padded)]
    both_ms, padded_ms = (plans[0].prediction.iteration_ms for plans, _ in found)
    choice = both.choose(samples)
    formed = [m.layout for pipeline in choice.pipelines for m in pipeline.microbatches]
    return {
        "ratio": both_ms / padded_ms,
        "gap": 100 * (both_ms / both.lower_bound(choice, samples).iteration_ms - 1),
        "packed": mean(layout is Layout.PACKED for layout in formed),
        "planning": found[0][1],
        "padded": found[1][1],
    }


def planned(planner: Planner, samples: Sequence[Sample]) -> tuple[list[RankPlan], float]:
    """Plans of the iteration, and processor time of their planning."""
    started_s = time.thread_time()
    plans = planner.make_plans(0, samples)
    planning_ms = 1e3 * (time.thread_time() - started_s)
    return plans, planning_ms


def measured_classes(folder: Path) -> Iterator[tuple[str, Row]]:
    """Name of its class, and numbers, of every batch."""
    for split in (False, True):
        for size, inputs in CLASSES:
            for name in inputs:
                family, longest, tokens = name.split("_")
                both, padded = (
                    planner_of(folder, family, size, layouts, split=split)
                    for layouts in (BOTH, PADDED)
                )
                replicas = f"x{size.n_replicas}{' split' if split else ''}"
                of_class = f"{family} {longest} {tokens} {replicas}"
                for samples in batches(folder, name):
                    yield of_class, measure(both, padded, samples)


def measure_all(folder: Path) -> dict[str, Row]:
    measured = list(measured_classes(folder))
    return {
        name: summary([row for of, row in measured if of == name])
        for name in dict.fromkeys(name for name, _ in measured)
    }


def summary(rows: Sequence[Row]) -> Row:
    ratios = [row["ratio"] for row in rows]
    medians = {name: median(row[name] for row in rows) for name in ("gap", "planning", "padded")}
    return {
        "batches": len(rows),
        "ratio": geometric_mean(ratios),
        "worst": max(ratios),
        "packed": mean(row["packed"] for row in rows),
        **medians,
    }


if __name__ == "__main__":
    run_over_inputs(__doc__, measure_all, COLUMNS)
