"""How long does one plan take, from samples to the bytes of all ranks, and where?

    python benchmarks/whole_plan.py [FOLDER] [--json OUT.json]

FOLDER (default ../shared) holds the inputs, see a100_inputs.py. Medians of one thread over all
batches of a file, in ms, each step alone; `whole` is the planner's own way
through all of them, with every memory share tried. `predicted` is the iteration that it plans.
"""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from a100_inputs import GPT, LENGTHS, a100_cluster, a100_cost, batches
from dynapipe_hpc.data.microbatch import MicroBatch
from dynapipe_hpc.data.sample import Sample
from dynapipe_hpc.plan.check import check_plans
from dynapipe_hpc.plan.codec import encode_plans
from dynapipe_hpc.plan.rank_plan import RankPlan
from dynapipe_hpc.planner.batch.config import DynamicConfig
from dynapipe_hpc.planner.batch.dynamic import DynamicBatches
from dynapipe_hpc.planner.batch.replicas import balance_replicas
from dynapipe_hpc.planner.batch.rules import batch_rules
from dynapipe_hpc.planner.comm.rank_plans import rank_plans
from dynapipe_hpc.planner.make_plans import Planner
from dynapipe_hpc.planner.schedule.config import RULES
from dynapipe_hpc.planner.schedule.pipeline import Pipeline, schedule_pipeline
from dynapipe_hpc.planner.search.config import SearchConfig
from dynapipe_hpc.planner.search.improve import improve
from measured import median_ms, medians, run_over_inputs

SCHEDULES = list(RULES.values())
COLUMNS = {
    "samples": "{:.0f}",
    "micro-batches": "{:.0f}",
    "instructions": "{:.0f}",
    "bytes_of_largest": "{:.0f}",
    "split": "{:.2f}",
    "balance": "{:.2f}",
    "schedule": "{:.2f}",
    "search": "{:.2f}",
    "transfers": "{:.2f}",
    "check": "{:.2f}",
    "encode": "{:.2f}",
    "whole": "{:.2f}",
    "predicted": "{:.1f}",
    "without_search": "{:.1f}",
}


def measure(planner: Planner, samples: list[Sample]) -> dict[str, float]:
    """Times every step on what the step before it made."""
    rule = DynamicBatches()
    microbatches = rule(samples, planner.cost, planner.cluster)
    pipelines = schedule(planner, microbatches)
    plans = write(planner, pipelines)
    return {
        "samples": len(samples),
        "micro-batches": len(microbatches),
        "instructions": sum(len(plan.instructions) for plan in plans),
        "bytes_of_largest": max(map(len, encode_plans(plans))),
        "split": median_ms(lambda: rule(samples, planner.cost, planner.cluster)),
        "balance": median_ms(
            lambda: balance_replicas(microbatches, planner.cost, planner.cluster.n_replicas)
        ),
        "schedule": median_ms(lambda: schedule(planner, microbatches)),
        "search": median_ms(lambda: search(planner, samples, pipelines)),
        "transfers": median_ms(lambda: write(planner, pipelines)),
        "check": median_ms(lambda: check_plans(plans)),
        "encode": median_ms(lambda: encode_plans(plans)),
        "whole": median_ms(lambda: encode_plans(planner.make_plans(0, samples))),
        "predicted": predicted_ms(planner, samples),
        "without_search": predicted_ms(replace(planner, search=None), samples),
    }


def schedule(planner: Planner, microbatches: Sequence[MicroBatch]) -> list[Pipeline]:
    n_replicas = planner.cluster.n_replicas
    return [
        schedule_pipeline(
            microbatches[replica::n_replicas], planner.cost, planner.cluster, SCHEDULES
        )
        for replica in range(n_replicas)
    ]


def search(planner: Planner, samples: list[Sample], pipelines: Sequence[Pipeline]) -> object:
    replicas = [pipeline.microbatches for pipeline in pipelines]
    return improve(replicas, samples, planner.cost, planner.cluster, SearchConfig())


def predicted_ms(planner: Planner, samples: list[Sample]) -> float:
    return planner.make_plans(0, samples)[0].prediction.iteration_ms


def write(planner: Planner, pipelines: Sequence[Pipeline]) -> list[RankPlan]:
    return rank_plans(0, pipelines, planner.cluster, planner.cost, planner.hidden_size)


def measure_all(folder: Path) -> dict[str, dict[str, float]]:
    results = {}
    for name in LENGTHS:
        for n_replicas in (1, 2):
            cluster = a100_cluster(n_replicas)
            rules = batch_rules(DynamicConfig(), cluster.n_stages, GPT.max_tokens)
            planner = Planner(
                a100_cost(folder, cluster),
                cluster,
                GPT.hidden_size,
                rules,
                SCHEDULES,
                SearchConfig(),
            )
            measured = [measure(planner, samples) for samples in batches(folder, name)]
            results[f"{name} x{n_replicas}"] = medians(measured, COLUMNS)
    return results


if __name__ == "__main__":
    run_over_inputs(__doc__, measure_all, COLUMNS)
