"""How long does the exact split take?

    python benchmarks/exact_split.py [FOLDER] [--json OUT.json]

FOLDER (default ../shared) has profiles/ with A100 layer profiles as CSV and lengths/ with
batches of sample lengths as JSON. Prints medians of one thread over all batches of a file.
"""

import argparse
import json
import platform
import statistics
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np

from dynapipe_hpc import _kernels
from dynapipe_hpc.data.sample import Sample
from dynapipe_hpc.plan.cluster import Cluster
from dynapipe_hpc.plan.model_shape import ModelShape
from dynapipe_hpc.planner.batch.candidates import candidates
from dynapipe_hpc.planner.batch.order import order_samples
from dynapipe_hpc.planner.batch.split import split_samples
from dynapipe_hpc.planner.cost.config import ProfiledConfig
from dynapipe_hpc.planner.cost.cost_model import CostModel
from dynapipe_hpc.planner.cost.import_csv import import_csv
from dynapipe_hpc.planner.cost.profiled import ProfiledCost

GPT = ModelShape(
    n_layers=16, hidden_size=4096, n_heads=32, ffn_size=16384, vocab_size=50304, max_tokens=8192
)
INPUTS = ("gpt_max2048_gbs16384", "gpt_max2048_gbs65536", "gpt_max2048_gbs262144")
N_REPEATS = 15
COLUMNS = {
    "samples": "{:.0f}",
    "candidates": "{:.0f}",
    "limits": "{:.0f}",
    "micro-batches": "{:.0f}",
    "objective_ms": "{:.1f}",
    "lookup_ms": "{:.2f}",
    "kernel_ms": "{:.3f}",
    "order_and_split_ms": "{:.2f}",
}


def median_ms(work: Callable[[], object]) -> float:
    times_ms = []
    for _ in range(N_REPEATS):
        started_s = time.perf_counter()
        work()
        times_ms.append(1e3 * (time.perf_counter() - started_s))
    return statistics.median(times_ms)


def measure(samples: list[Sample], cost: CostModel, cluster: Cluster) -> dict[str, float]:
    ordered = order_samples(samples)
    choice = candidates(ordered, cost, cluster, memory_share=1.0)
    tables = (choice.length_of_sample, choice.work_ms, choice.fill_ms, cluster.n_replicas)
    sizes, objective_ms, n_solves = _kernels.split_samples(*tables)
    return {
        "samples": len(samples),
        "candidates": int(np.isfinite(choice.work_ms).sum()),
        "limits": n_solves,
        "micro-batches": len(sizes),
        "objective_ms": objective_ms,
        "lookup_ms": median_ms(lambda: candidates(ordered, cost, cluster, memory_share=1.0)),
        "kernel_ms": median_ms(lambda: _kernels.split_samples(*tables)),
        "order_and_split_ms": median_ms(
            lambda: split_samples(order_samples(samples), cost, cluster)
        ),
    }


def measure_all(folder: Path) -> dict[str, dict[str, float]]:
    profiles = folder / "profiles"
    table = import_csv(
        profiles / "a100_40gb_gpt_6.7b.csv", profiles / "a100_40gb_gpt_6.7b_parameters.csv", GPT
    )
    results = {}
    for name in INPUTS:
        batches = json.loads((folder / "lengths" / f"{name}.json").read_text())["batches"]
        for n_replicas in (1, 2):
            cluster = Cluster(n_replicas=n_replicas, n_stages=4, device_memory_bytes=40_000_000_000)
            cost = ProfiledCost(table, GPT, cluster, ProfiledConfig(path=profiles))
            measured = [
                measure([Sample(i, n - 1, 1) for i, n in enumerate(batch)], cost, cluster)
                for batch in batches
            ]
            results[f"{name} x{n_replicas}"] = {
                column: statistics.median(m[column] for m in measured) for column in COLUMNS
            }
    return results


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("folder", type=Path, nargs="?", default=Path("../shared"))
    parser.add_argument("--json", type=Path)
    arguments = parser.parse_args()
    results = measure_all(arguments.folder)
    print(f"{'input x replicas':28}", *(f"{column:>{len(column)}}" for column in COLUMNS))
    for name, row in results.items():
        print(f"{name:28}", *(f"{form.format(row[c]):>{len(c)}}" for c, form in COLUMNS.items()))
    if arguments.json:
        machine = (
            f"{platform.processor() or platform.machine()}, Python {platform.python_version()}"
        )
        arguments.json.write_text(json.dumps({"machine": machine, "results": results}, indent=1))


if __name__ == "__main__":
    main()
