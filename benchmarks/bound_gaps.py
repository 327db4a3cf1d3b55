"""Time of plans above the lower bound of all plans.

    python benchmarks/bound_gaps.py [FOLDER] [--json OUT.json]

FOLDER (default ../shared) holds the inputs, see a100_inputs.py, and reference/original_planner.json
with the settings of the authors' plans of the same batches: of the 6.7B GPT on 4 stages, 16 layers
on one replica and 32 on two. All is counted as the authors do: 36 GB per device, their accounting
of memory, their link, and rows as long as theirs: a token less than samples (docs/decisions, 23).
Points that they could not measure, as a stack of three layers ran out of memory at them, are filled
in up to the most tokens that they measured: twice as many rows take twice as much.

A row is a class of batches, named by what they have in common, and by the effort of the search:
"both split" is with padded and packed rows and split backward passes; "fused split" the same with
times and memory estimated from an A100's peak rates in place of the table of 2023: attention that
stores no scores, for which the FLOPs of a token grow less with the length of its row. `gap` is the
mean in %, beside `median` and `worst`; `trip` the median share of the iteration, in %, that the
longest sample's own trip through the stages takes, which is part of the bound; `bound` the median
processor time for the bound in ms.
"""

import json
import time
from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import product
from pathlib import Path
from statistics import mean, median
from typing import Any

import numpy as np

from a100_inputs import (
    GPT,
    Devices,
    a100_devices,
    a100_table,
    batches,
    equal_shares,
    in_authors_rows,
)
from dynapipe_hpc.data.sample import Sample
from dynapipe_hpc.plan.cluster import Cluster, Link
from dynapipe_hpc.planner.choose.config import SearchConfig
from dynapipe_hpc.planner.cost.analytic import analytic_cost
from dynapipe_hpc.planner.cost.config import AnalyticConfig
from dynapipe_hpc.planner.cost.table.profile_table import LayerProfile, ProfileTable
from dynapipe_hpc.planner.make_plans import Planner
from measured import run_over_inputs

AUTHORS_LINK = Link(latency_ms=0, bytes_per_ms=4800e9 / 8 / 1e3, full_duplex=False)
EFFORTS = (SearchConfig(), SearchConfig(effort=800_000), SearchConfig(effort=50_000_000))
MAX_TOKENS = 32_768  # of a micro-batch that was measured in some mode
COLUMNS = {
    "batches": "{:.0f}",
    "gap": "{:.2f}",
    "median": "{:.2f}",
    "worst": "{:.2f}",
    "trip": "{:.1f}",
    "bound": "{:.1f}",
}


def published(folder: Path) -> Iterator[tuple[str, Devices]]:
    """Batches of the GPT that the authors planned, and its devices, their table's gaps filled."""
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
            yield entry["input"], devices._replace(cluster=roomy)


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


def gap(planner: Planner, samples: Sequence[Sample]) -> tuple[float, float, float]:
    """Gap of a plan and its longest trip in %, and ms for the bound."""
    choice = planner.choose(samples)
    planned_ms = planner.write(0, choice)[0].prediction.iteration_ms
    started_s = time.thread_time()
    bound = planner.lower_bound(choice, samples)
    bound_ms = 1e3 * (time.thread_time() - started_s)
    trip = 100 * bound.longest_trip_ms / planned_ms
    return 100 * (planned_ms / bound.iteration_ms - 1), trip, bound_ms


def measure_all(folder: Path) -> dict[str, dict[str, float]]:
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
        "fused": [("gpt_max8192_gbs65536", each) for each in fused],
    }
    found = {}
    for kind, cases in kinds.items():
        for (lengths, devices), search in product(cases, EFFORTS):
            planner = devices.planner(search)
            name = f"{kind} split {lengths} x{devices.cluster.n_replicas} {search.effort}"
            found[name] = row_of(
                gap(planner, in_authors_rows(samples) if kind == "both" else samples)
                for samples in batches(folder, lengths)
            )
    return found


def row_of(found: Iterator[tuple[float, float, float]]) -> dict[str, float]:
    gaps, trips, bounds_ms = zip(*found, strict=True)
    return {
        "batches": len(gaps),
        "gap": mean(gaps),
        "median": median(gaps),
        "worst": max(gaps),
        "trip": median(trips),
        "bound": median(bounds_ms),
    }


if __name__ == "__main__":
    run_over_inputs(__doc__, measure_all, COLUMNS)
