"""How long does a plan of a very large batch take, where, and with how much memory?

    python benchmarks/large_batch.py [FOLDER] [--json OUT.json]

Every case in a fresh process. Samples of the 6.7B model on 4 stages and 16 replicas, 10,000 of them
also on 128 and 1,024 replicas, and 25,000 on 16 stages and 8 replicas; without recomputation, and
with all three modes. Lengths are those of instruction data: 97.4 % lognormal with a median of 105
tokens and sigma 0.8, 2.6 % with 620 and 1.0, at most 2048. Then pairs of the 11B encoder-decoder
model in three modes on 4 stages of 8 shards: drawn from the file of their lengths, and, `distinct`,
with either side multiplied by a lognormal number of sigma 0.3 until no two are alike; `table` and
`cut` are of the first of their four orders.

Milliseconds of processor time of one thread. `choose` finds the micro-batches and their schedules
and comes first; `MB` is the most memory that it takes on top of what the process had before, with
libraries and samples. The phases then follow one by one, and the whole in default setting.
`predicted` is the iteration that is planned, in ms.
"""

import resource
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor
from dataclasses import replace
from functools import partial
from multiprocessing import get_context
from pathlib import Path
from typing import TypeVar

import numpy as np

from a100_inputs import GPT, T5, Mode, a100_cost, a100_table, batches, equal_shares
from dynapipe_hpc.data.sample import Sample
from dynapipe_hpc.plan.check import check_plans
from dynapipe_hpc.plan.cluster import Cluster
from dynapipe_hpc.plan.codec import encode_plans
from dynapipe_hpc.planner.batch.config import DynamicConfig
from dynapipe_hpc.planner.batch.order import orders
from dynapipe_hpc.planner.batch.split import split
from dynapipe_hpc.planner.batch.windows.price_windows import price_bundled_windows
from dynapipe_hpc.planner.comm.rank_plans import rank_plans
from dynapipe_hpc.planner.cost.config import ProfiledConfig
from dynapipe_hpc.planner.cost.profiled import ProfiledCost
from dynapipe_hpc.planner.from_config import dynamic_chooser, schedule_rules
from dynapipe_hpc.planner.make_plans import Planner
from dynapipe_hpc.planner.schedule.config import ScheduleConfig
from dynapipe_hpc.planner.search.config import SearchConfig
from measured import run_over_inputs

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
    "whole": "{:.0f}",
    "predicted": "{:.0f}",
    "MB": "{:.0f}",
}
ONE_MODE: tuple[Mode, ...] = ("none",)
THREE_MODES: tuple[Mode, ...] = ("none", "selective", "full")
SAMPLES = (1_000, 10_000, 100_000)
REPLICAS = (128, 1024)
PAIRS = (2_500, 5_000, 10_000)
SPREAD = 0.3
Result = TypeVar("Result")


def drawn_samples(n_samples: int) -> list[Sample]:
    random = np.random.default_rng(0)
    common = random.lognormal(np.log(105), 0.8, n_samples)
    rare = random.lognormal(np.log(620), 1.0, n_samples)
    lengths = np.where(random.random(n_samples) < 0.974, common, rare).round().clip(2, 2048)
    return [Sample(i, n - 1, 1) for i, n in enumerate(lengths.astype(int).tolist())]


def drawn_pairs(folder: Path, n_pairs: int) -> list[Sample]:
    known = [pair for batch in batches(folder, "t5_max2048_gbs65536") for pair in batch]
    drawn = np.random.default_rng(0).integers(0, len(known), n_pairs).tolist()
    return [replace(known[j], sample_id=i) for i, j in enumerate(drawn)]


def distinct_pairs(folder: Path, n_pairs: int) -> list[Sample]:
    random = np.random.default_rng(0)
    known = [(s.input_tokens, s.target_tokens) for s in drawn_pairs(folder, 4 * n_pairs)]
    factors = random.lognormal(0, SPREAD, (len(known), 2))
    pairs = (np.array(known) * factors).round().clip(1, 2048).astype(int)
    found = list(dict.fromkeys(map(tuple, pairs.tolist())))[:n_pairs]
    return [Sample(i, *pair) for i, pair in enumerate(found)]


def timed(times: dict[str, float], name: str, work: Callable[[], Result]) -> Result:
    started_s = time.thread_time()
    result = work()
    times[name] = 1e3 * (time.thread_time() - started_s)
    return result


def planner_of(
    folder: Path, n_stages: int, n_replicas: int, modes: tuple[Mode, ...] = ONE_MODE
) -> Planner:
    cluster = Cluster(n_replicas=n_replicas, n_stages=n_stages, device_memory_bytes=40_000_000_000)
    cost, rules = a100_cost(folder, cluster, modes), schedule_rules(ScheduleConfig())
    chooser = dynamic_chooser(DynamicConfig(), SearchConfig(), rules, cost, cluster)
    boundaries = equal_shares(GPT, cluster).boundaries(GPT.architecture)
    return Planner(chooser, cost, cluster, GPT.hidden_size, boundaries)


def planner_of_pairs(folder: Path) -> Planner:
    cluster = Cluster(n_stages=4, n_shards=8, device_memory_bytes=36_000_000_000)
    placement = equal_shares(T5, cluster)
    config = ProfiledConfig(path=folder, recompute=THREE_MODES)
    cost = ProfiledCost(a100_table(folder / "profiles", "t5"), T5, placement, cluster, config)
    rules = schedule_rules(ScheduleConfig())
    chooser = dynamic_chooser(DynamicConfig(), SearchConfig(), rules, cost, cluster)
    boundaries = placement.boundaries(T5.architecture)
    return Planner(chooser, cost, cluster, T5.hidden_size, boundaries)


def measure(planner: Planner, samples: list[Sample]) -> dict[str, float]:
    times: dict[str, float] = {}
    cost, cluster = planner.cost, planner.cluster
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    choice = timed(times, "choose", lambda: planner.choose(samples))
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    in_orders = timed(times, "order", lambda: orders(samples, cost.is_encoder_decoder))
    ordered = next(iter(in_orders.values()))
    windows = timed(times, "table", lambda: price_bundled_windows(ordered, cost, cluster))
    timed(times, "cut", lambda: split(windows, cluster.n_replicas))
    plans = timed(
        times,
        "transfers",
        lambda: rank_plans(
            0, choice.pipelines, cluster, cost, planner.hidden_size, planner.boundaries
        ),
    )
    timed(times, "check", lambda: check_plans(plans))
    timed(times, "encode", lambda: encode_plans(plans))
    timed(times, "whole", lambda: encode_plans(planner.make_plans(0, samples)))
    return {
        "samples": len(samples),
        "micro-batches": sum(len(p.microbatches) for p in choice.pipelines),
        "predicted": plans[0].prediction.iteration_ms,
        "MB": (peak - before) / 1e3,
        **times,
    }


def measure_samples(
    folder: Path, n_stages: int, n_replicas: int, n_samples: int, modes: tuple[Mode, ...]
) -> dict[str, float]:
    return measure(planner_of(folder, n_stages, n_replicas, modes), drawn_samples(n_samples))


def measure_pairs(
    folder: Path, pairs: Callable[[Path, int], list[Sample]], n_pairs: int
) -> dict[str, float]:
    return measure(planner_of_pairs(folder), pairs(folder, n_pairs))


def cases(folder: Path) -> Iterator[tuple[str, Callable[[], dict[str, float]]]]:
    layouts = [(4, 16, n) for n in SAMPLES] + [(4, n, 10_000) for n in REPLICAS] + [(16, 8, 25_000)]
    for n_stages, n_replicas, n in layouts:
        for modes in (ONE_MODE, THREE_MODES):
            name = f"{n} samples, {n_stages} x {n_replicas}, {len(modes)} modes"
            yield name, partial(measure_samples, folder, n_stages, n_replicas, n, modes)
    for kind, pairs in (("drawn", drawn_pairs), ("distinct", distinct_pairs)):
        for n in PAIRS:
            yield f"{n} pairs, {kind}", partial(measure_pairs, folder, pairs, n)


def measure_all(folder: Path) -> dict[str, dict[str, float]]:
    found = {}
    for name, work in cases(folder):
        with ProcessPoolExecutor(1, mp_context=get_context("spawn")) as fresh:
            found[name] = fresh.submit(work).result()
    return found


if __name__ == "__main__":
    run_over_inputs(__doc__, measure_all, COLUMNS)
