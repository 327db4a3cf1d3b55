"""How long does a plan of a very large batch take, and where?

    python benchmarks/large_batch.py [FOLDER] [--json OUT.json]

4 million tokens, about 25,000 samples, on 16 stages and 8 replicas of the 6.7B model, and the first
10,000 of these samples on up to 1,024 replicas. Lengths are those of instruction data: 97.4 %
lognormal with a median of 105 tokens and sigma 0.8, 2.6 % with 620 and 1.0, at most 2048. Then
pairs of the 11B encoder-decoder model, drawn from the file of their lengths, on 4 stages of 8
shards; `table` and `cut` are of the first of their four orders. Milliseconds of processor time of
one thread. Phases are timed one by one, the default setting in all as `whole`. `MB` is the most
memory that the process has had so far, libraries included.
"""

import resource
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import TypeVar

import numpy as np

from a100_inputs import GPT, T5, a100_cost, a100_table, batches
from dynapipe_hpc.data.sample import Sample
from dynapipe_hpc.plan.check import check_plans
from dynapipe_hpc.plan.cluster import Cluster
from dynapipe_hpc.plan.codec import encode_plans
from dynapipe_hpc.planner.batch.candidates import candidates
from dynapipe_hpc.planner.batch.config import DynamicConfig
from dynapipe_hpc.planner.batch.order import orders
from dynapipe_hpc.planner.batch.rules import batch_rules
from dynapipe_hpc.planner.batch.split import split
from dynapipe_hpc.planner.comm.rank_plans import rank_plans
from dynapipe_hpc.planner.cost.config import ProfiledConfig
from dynapipe_hpc.planner.cost.profiled import ProfiledCost
from dynapipe_hpc.planner.make_plans import Planner
from dynapipe_hpc.planner.schedule.config import ScheduleConfig
from dynapipe_hpc.planner.search.config import SearchConfig
from measured import run_over_inputs

N_TOKENS = 4_000_000
COLUMNS = {
    "samples": "{:.0f}",
    "micro-batches": "{:.0f}",
    "order": "{:.0f}",
    "table": "{:.0f}",
    "cut": "{:.0f}",
    "choose": "{:.0f}",
    "transfers": "{:.0f}",
    "check": "{:.0f}",
    "encode": "{:.0f}",
    "bound": "{:.0f}",
    "whole": "{:.0f}",
    "gap": "{:.2f}",
    "MB": "{:.0f}",
}
LAYOUTS = ((4, 16, 10_000), (4, 128, 10_000), (4, 1024, 10_000), (16, 128, 10_000), (16, 8, None))
N_PAIRS = (1_000, 3_000, 10_000)
Result = TypeVar("Result")


def drawn_samples(n_tokens: int) -> list[Sample]:
    random = np.random.default_rng(0)
    n_drawn = n_tokens // 50  # more than enough
    common = random.lognormal(np.log(105), 0.8, n_drawn)
    rare = random.lognormal(np.log(620), 1.0, n_drawn)
    lengths = np.where(random.random(n_drawn) < 0.974, common, rare).round().clip(2, 2048)
    n_samples = int(np.searchsorted(np.cumsum(lengths), n_tokens))
    return [Sample(i, n - 1, 1) for i, n in enumerate(lengths[:n_samples].astype(int).tolist())]


def drawn_pairs(folder: Path, n_pairs: int) -> list[Sample]:
    known = [pair for batch in batches(folder, "t5_max2048_gbs65536") for pair in batch]
    drawn = np.random.default_rng(0).integers(0, len(known), n_pairs).tolist()
    return [replace(known[j], sample_id=i) for i, j in enumerate(drawn)]


def timed(times: dict[str, float], name: str, work: Callable[[], Result]) -> Result:
    started_s = time.thread_time()
    result = work()
    times[name] = 1e3 * (time.thread_time() - started_s)
    return result


def planner_of(folder: Path, n_stages: int, n_replicas: int) -> Planner:
    cluster = Cluster(n_replicas=n_replicas, n_stages=n_stages, device_memory_bytes=40_000_000_000)
    return Planner(
        a100_cost(folder, cluster),
        cluster,
        GPT.hidden_size,
        batch_rules(DynamicConfig(), n_stages, GPT.max_tokens),
        ScheduleConfig().chosen_rules,
        SearchConfig(),
    )


def planner_of_pairs(folder: Path) -> Planner:
    cluster = Cluster(n_stages=4, n_shards=8, device_memory_bytes=36_000_000_000)
    config = ProfiledConfig(path=folder, recompute=("none", "selective", "full"))
    return Planner(
        ProfiledCost(a100_table(folder / "profiles", "t5"), T5, cluster, config),
        cluster,
        T5.hidden_size,
        batch_rules(DynamicConfig(), cluster.n_stages, T5.max_tokens),
        ScheduleConfig().chosen_rules,
        SearchConfig(),
        first_decoder_stage=T5.first_decoder_stage(cluster.n_stages),
    )


def measure(planner: Planner, samples: list[Sample]) -> dict[str, float]:
    times: dict[str, float] = {}
    cost, cluster = planner.cost, planner.cluster
    in_orders = timed(times, "order", lambda: orders(samples, cost.is_encoder_decoder))
    ordered = next(iter(in_orders.values()))
    windows = timed(times, "table", lambda: candidates(ordered, cost, cluster))
    timed(times, "cut", lambda: split(windows, cluster.n_replicas))
    choice = timed(times, "choose", lambda: planner.choose(samples))
    plans = timed(
        times,
        "transfers",
        lambda: rank_plans(0, choice.pipelines, cluster, cost, planner.hidden_size),
    )
    timed(times, "check", lambda: check_plans(plans))
    timed(times, "encode", lambda: encode_plans(plans))
    bound_ms = timed(times, "bound", lambda: planner.lower_bound_ms(choice, samples))
    timed(times, "whole", lambda: encode_plans(planner.make_plans(0, samples)))
    return {
        "samples": len(samples),
        "micro-batches": sum(len(p.microbatches) for p in choice.pipelines),
        "gap": 100 * (plans[0].prediction.iteration_ms / bound_ms - 1),
        "MB": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1e3,
        **times,
    }


def measure_all(folder: Path) -> dict[str, dict[str, float]]:
    samples = drawn_samples(N_TOKENS)
    by_length = {
        f"{n_stages} stages x {n_replicas} replicas": measure(
            planner_of(folder, n_stages, n_replicas), samples[:n_samples]
        )
        for n_stages, n_replicas, n_samples in LAYOUTS
    }
    pairs = planner_of_pairs(folder)
    return by_length | {
        f"{n_pairs} pairs": measure(pairs, drawn_pairs(folder, n_pairs)) for n_pairs in N_PAIRS
    }


if __name__ == "__main__":
    run_over_inputs(__doc__, measure_all, COLUMNS)
