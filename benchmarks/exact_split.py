"""How long does the exact split take?

    python benchmarks/exact_split.py [FOLDER] [--json OUT.json]

FOLDER (default ../shared) holds the inputs, see a100_inputs.py. Medians of one thread over all
batches of a file.
"""

from pathlib import Path

from a100_inputs import LENGTHS, a100_cluster, a100_cost, batches
from dynapipe_hpc import _kernels
from dynapipe_hpc.data.sample import Sample
from dynapipe_hpc.plan.cluster import Cluster
from dynapipe_hpc.planner.batch.order import order_samples
from dynapipe_hpc.planner.batch.split import split_samples
from dynapipe_hpc.planner.batch.windows.price_windows import price_windows
from dynapipe_hpc.planner.cost.cost_model import CostModel
from measured import median_ms, medians, run_over_inputs

COLUMNS = {
    "samples": "{:.0f}",
    "looked_up": "{:.0f}",
    "candidates": "{:.0f}",
    "limits": "{:.0f}",
    "micro-batches": "{:.0f}",
    "objective_ms": "{:.1f}",
    "order_ms": "{:.2f}",
    "lookup_ms": "{:.2f}",
    "modes_ms": "{:.3f}",
    "kernel_ms": "{:.3f}",
    "order_and_split_ms": "{:.2f}",
}


def measure(samples: list[Sample], cost: CostModel, cluster: Cluster) -> dict[str, float]:
    ordered = order_samples(samples)
    table = price_windows(ordered, cost, cluster)
    cheapest = table.cheapest()
    times = (cheapest.begin, cheapest.work_ms, cheapest.fill_ms)
    tables = (table.row_of_sample, *times, cluster.n_replicas)
    found = _kernels.split_samples(*tables)
    return {
        "samples": len(samples),
        "looked_up": table.costs.n_microbatches,
        "candidates": int((table.cells >= 0).sum()),
        "limits": found.n_solves,
        "micro-batches": len(found.sizes),
        "objective_ms": found.objective_ms,
        "order_ms": median_ms(lambda: order_samples(samples)),
        "lookup_ms": median_ms(lambda: price_windows(ordered, cost, cluster)),
        "modes_ms": median_ms(table.cheapest),
        "kernel_ms": median_ms(lambda: _kernels.split_samples(*tables)),
        "order_and_split_ms": median_ms(
            lambda: split_samples(order_samples(samples), cost, cluster)
        ),
    }


def measure_all(folder: Path) -> dict[str, dict[str, float]]:
    results = {}
    for name in LENGTHS:
        for n_replicas in (1, 2):
            cluster = a100_cluster(n_replicas)
            cost = a100_cost(folder, cluster, ("none", "selective", "full"))
            measured = [measure(samples, cost, cluster) for samples in batches(folder, name)]
            results[f"{name} x{n_replicas}"] = medians(measured, COLUMNS)
    return results


if __name__ == "__main__":
    run_over_inputs(__doc__, measure_all, COLUMNS)
