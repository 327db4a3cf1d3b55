"""How long does it take to write, check and encode the plans of many ranks?

    python benchmarks/write_plans.py [--json OUT.json]

Every replica has 130 micro-batches of 24 samples under 1F1B, so that 16 stages of 8 replicas are
about 25,000 samples. Median time of one thread in ms.
"""

import argparse
from pathlib import Path

from dynapipe_hpc.architecture.gpt import GptShape
from dynapipe_hpc.architecture.placement import Placement
from dynapipe_hpc.data.microbatch import MicroBatch
from dynapipe_hpc.plan.check import check_plans
from dynapipe_hpc.plan.cluster import Cluster
from dynapipe_hpc.plan.codec import encode_plans
from dynapipe_hpc.planner.comm.rank_plans import rank_plans
from dynapipe_hpc.planner.cost.config import AnalyticConfig
from dynapipe_hpc.planner.cost.from_config import costs_of
from dynapipe_hpc.planner.schedule.one_f_one_b import one_f_one_b
from dynapipe_hpc.planner.schedule.pipeline import schedule_pipeline
from measured import median_ms, print_table, write_json

SHAPE = GptShape(
    n_layers=16, hidden_size=4096, n_heads=32, ffn_size=16384, vocab_size=50304, max_tokens=8192
)
COLUMNS = {
    "ranks": "{:.0f}",
    "instructions": "{:.0f}",
    "megabytes": "{:.2f}",
    "write": "{:.2f}",
    "check": "{:.2f}",
    "encode": "{:.2f}",
}


def measure(n_stages: int, n_replicas: int) -> dict[str, float]:
    """Times the steps for one iteration."""
    cluster = Cluster(n_stages=n_stages, n_replicas=n_replicas, device_memory_bytes=10**15)
    placement = Placement.equal_shares(SHAPE.n_layers, n_stages)
    boundaries = placement.boundaries(SHAPE)
    cost, _ = costs_of(AnalyticConfig(), SHAPE, placement, cluster)
    microbatches = [
        MicroBatch(tuple((24 * k + row,) for row in range(24)), row_tokens=168) for k in range(130)
    ]
    pipelines = [
        schedule_pipeline(list(microbatches), cost, cluster, [one_f_one_b])
        for _ in range(n_replicas)
    ]
    plans = rank_plans(0, pipelines, cluster, cost, SHAPE.hidden_size, boundaries)
    return {
        "ranks": len(plans),
        "instructions": sum(len(plan.instructions) for plan in plans),
        "megabytes": sum(map(len, encode_plans(plans))) / 1e6,
        "write": median_ms(
            lambda: rank_plans(0, pipelines, cluster, cost, SHAPE.hidden_size, boundaries)
        ),
        "check": median_ms(lambda: check_plans(plans)),
        "encode": median_ms(lambda: encode_plans(plans)),
    }


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--json", type=Path)
    arguments = parser.parse_args()
    results = {f"{s} stages x {r}": measure(s, r) for s, r in ((4, 2), (16, 8))}
    print_table(results, COLUMNS)
    if arguments.json:
        write_json(arguments.json, results)
