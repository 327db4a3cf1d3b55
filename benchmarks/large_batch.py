"""Time and memory of planning a very large batch, step by step.

    python benchmarks/large_batch.py [FOLDER] [--json OUT.json]

Every case in a fresh process. Samples of the 6.7B model on 4 stages and 16 replicas, 10,000 of them
also on 128 and 1,024 replicas, and 25,000 on 16 stages and 8 replicas; without recomputation, and
with all three modes. Lengths are those of instruction data: 97.4 % lognormal with a median of 105
tokens and sigma 0.8, 2.6 % with 620 and 1.0, at most 2048. Then pairs of the 11B encoder-decoder
model in three modes on 4 stages of 8 shards: drawn from the file of their lengths, and, `distinct`,
with either side multiplied by a lognormal number of sigma 0.3 until no two are alike; `table` and
`cut` are of the first of their two orders. Last, 2^18, 2^20 and 2^22 tokens of many tasks on 64
stages of a model of 64 such layers, 2^16 tokens for each replica, with everything to choose from:
padded and packed rows, split backward passes, and one mode or all three.

Milliseconds of processor time of one thread. `choose` finds the micro-batches and their schedules
and comes first; `MB` is the most memory that it takes on top of what the process had before, with
libraries and samples. The phases then follow one by one, and the whole in default setting: the
median of three times, as a shared machine is not equally fast all the time.
`predicted` is the iteration that is planned, in ms, and `bound` what none can be shorter than.
"""

import resource
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor
from dataclasses import replace
from functools import partial
from multiprocessing import get_context
from pathlib import Path
from statistics import median
from typing import TypeVar

import numpy as np

from a100_inputs import (
    BOTH,
    GPT,
    ONE_MODE,
    T5,
    THREE_MODES,
    Mode,
    a100_devices,
    a100_table,
    batches,
)
from dynapipe_hpc.data.multitask_lengths import draw_lengths
from dynapipe_hpc.data.sample import Sample
from dynapipe_hpc.job.process import keep_freed_memory
from dynapipe_hpc.plan.check import check_plans
from dynapipe_hpc.plan.cluster import Cluster
from dynapipe_hpc.plan.codec import encode_plans
from dynapipe_hpc.planner.batch.order import orders
from dynapipe_hpc.planner.batch.windows.price_windows import price_windows
from dynapipe_hpc.planner.make_plans import Planner, rank_plans
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
    "bound": "{:.0f}",
    "MB": "{:.0f}",
}
SAMPLES = (1_000, 10_000, 100_000)
REPLICAS = (128, 1024)
PAIRS = (2_500, 5_000, 10_000)
SPREAD = 0.3
DEEP = GPT.model_copy(update={"n_layers": 64})
TOKENS = (2**18, 2**20, 2**22)
TOKENS_PER_REPLICA = 2**16
LONGEST = 2048
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


def drawn_tasks(n_tokens: int) -> list[Sample]:
    drawn = draw_lengths(n_tokens // 64, seed=0)
    lengths = (drawn.inputs + drawn.targets).clip(2, LONGEST)
    n_samples = int(np.searchsorted(np.cumsum(lengths), n_tokens))
    return [Sample(i, n - 1, 1) for i, n in enumerate(lengths[:n_samples].tolist())]


def timed(times: dict[str, float], name: str, work: Callable[[], Result]) -> Result:
    started_s = time.thread_time()
    result = work()
    times[name] = 1e3 * (time.thread_time() - started_s)
    return result


def planner_of(
    folder: Path, n_stages: int, n_replicas: int, modes: tuple[Mode, ...] = ONE_MODE
) -> Planner:
    cluster = Cluster(n_replicas=n_replicas, n_stages=n_stages, device_memory_bytes=40_000_000_000)
    return a100_devices(a100_table(folder), cluster, modes=modes).planner()


def planner_of_pairs(folder: Path) -> Planner:
    cluster = Cluster(n_stages=4, n_shards=8, device_memory_bytes=36_000_000_000)
    return a100_devices(a100_table(folder, "t5"), cluster, T5).planner()


def planner_of_everything(folder: Path, n_replicas: int, modes: tuple[Mode, ...]) -> Planner:
    cluster = Cluster(n_replicas=n_replicas, n_stages=64, device_memory_bytes=40_000_000_000)
    return a100_devices(a100_table(folder), cluster, DEEP, modes).planner(BOTH, split=True)


def measure(planner: Planner, samples: list[Sample]) -> dict[str, float]:
    keep_freed_memory()  # as a run does
    times: dict[str, float] = {}
    cost, cluster = planner.cost, planner.cluster
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    choice = timed(times, "choose", lambda: planner.choose(samples))
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    in_orders = timed(times, "order", lambda: orders(samples, cost.is_encoder_decoder))
    ordered = in_orders[0]
    windows = timed(times, "table", lambda: price_windows(ordered, cost, cluster, may_bundle=True))
    timed(times, "cut", lambda: windows.split(cluster.n_replicas))
    plans = timed(
        times,
        "transfers",
        lambda: rank_plans(
            0,
            choice.pipelines,
            cluster,
            cost,
            hidden_size=planner.hidden_size,
            boundaries=planner.boundaries,
        ),
    )
    timed(times, "check", lambda: check_plans(plans))
    timed(times, "encode", lambda: encode_plans(plans))
    wholes: dict[str, float] = {}
    for run in ("first", "second", "third"):
        timed(wholes, run, lambda: encode_plans(planner.make_plans(0, samples)))
    times["whole"] = median(wholes.values())
    return {
        "samples": len(samples),
        "micro-batches": sum(len(p.microbatches) for p in choice.pipelines),
        "predicted": plans[0].prediction.iteration_ms,
        "bound": planner.lower_bound(choice, samples).iteration_ms,
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


def measure_tasks(folder: Path, n_tokens: int, modes: tuple[Mode, ...]) -> dict[str, float]:
    planner = planner_of_everything(folder, n_tokens // TOKENS_PER_REPLICA, modes)
    return measure(planner, drawn_tasks(n_tokens))


def cases(folder: Path) -> Iterator[tuple[str, Callable[[], dict[str, float]]]]:
    layouts = [(4, 16, n) for n in SAMPLES] + [(4, n, 10_000) for n in REPLICAS] + [(16, 8, 25_000)]
    for n_stages, n_replicas, n in layouts:
        for modes in (ONE_MODE, THREE_MODES):
            name = f"{n} samples, {n_stages} x {n_replicas}, {len(modes)} modes"
            yield name, partial(measure_samples, folder, n_stages, n_replicas, n, modes)
    for kind, pairs in (("drawn", drawn_pairs), ("distinct", distinct_pairs)):
        for n in PAIRS:
            yield f"{n} pairs, {kind}", partial(measure_pairs, folder, pairs, n)
    for n in TOKENS:
        for modes in (ONE_MODE, THREE_MODES):
            name = f"{n} tokens, 64 x {n // TOKENS_PER_REPLICA}, {len(modes)} modes, everything"
            yield name, partial(measure_tasks, folder, n, modes)


def measure_all(folder: Path) -> dict[str, dict[str, float]]:
    found = {}
    for name, work in cases(folder):
        with ProcessPoolExecutor(1, mp_context=get_context("spawn")) as fresh:
            found[name] = fresh.submit(work).result()
    return found


if __name__ == "__main__":
    run_over_inputs(__doc__, measure_all, COLUMNS)
