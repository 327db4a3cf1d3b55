"""Time and memory of planning a very large batch.

    python benchmarks/large_batch.py [FOLDER] [--json OUT.json]

2^18, 2^20 and 2^22 tokens of many tasks on 64 stages of a model of 64 of the layers that the
paper's authors measured, 2^16 tokens for each replica, with everything to choose from: padded and
packed rows, split backward passes, and one mode of recomputation or all three. Every case in a
fresh process.

Milliseconds of processor time of one thread. `choose` finds the micro-batches and their schedules;
`MB` is the most memory that it takes on top of what the process had before, with libraries and
samples. `whole` goes from lengths to the checked and encoded plans: the median of three times, as a
shared machine is not equally fast all the time. `predicted` is the iteration that is planned, in
ms, and `bound` what none can be shorter than.
"""

import resource
import time
from concurrent.futures import ProcessPoolExecutor
from itertools import product
from multiprocessing import get_context
from pathlib import Path

import numpy as np

from a100_inputs import GPT, ONE_MODE, THREE_MODES, Mode, a100_devices, a100_table
from dynapipe_hpc.data.lengths_file import draw_lengths
from dynapipe_hpc.data.sample import Sample
from dynapipe_hpc.job.process import keep_freed_memory
from dynapipe_hpc.plan.cluster import Cluster
from dynapipe_hpc.plan.codec import encode_plans
from dynapipe_hpc.planner.choose.config import SearchConfig
from measured import median_ms, run_over_inputs

COLUMNS = dict.fromkeys(
    ("samples", "micro-batches", "choose", "whole", "predicted", "bound", "MB"), "{:.0f}"
)
DEEP = GPT.model_copy(update={"n_layers": 64})
TOKENS = (2**18, 2**20, 2**22)
TOKENS_PER_REPLICA = 2**16
LONGEST = 2048


def drawn_samples(n_tokens: int) -> list[Sample]:
    drawn = draw_lengths(n_tokens // 64, seed=0)
    lengths = (drawn.inputs + drawn.targets).clip(2, LONGEST)
    n_samples = int(np.searchsorted(np.cumsum(lengths), n_tokens))
    return [Sample(i, n - 1, 1) for i, n in enumerate(lengths[:n_samples].tolist())]


def measure(folder: Path, n_tokens: int, modes: tuple[Mode, ...]) -> dict[str, float]:
    keep_freed_memory()  # as a run does
    cluster = Cluster(
        n_replicas=n_tokens // TOKENS_PER_REPLICA, n_stages=64, device_memory_bytes=40_000_000_000
    )
    planner = a100_devices(a100_table(folder), cluster, DEEP, modes).planner(SearchConfig())
    samples = drawn_samples(n_tokens)
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    started_s = time.thread_time()
    choice = planner.choose(samples)
    choose_ms = 1e3 * (time.thread_time() - started_s)
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    whole_ms = median_ms(lambda: encode_plans(planner.make_plans(0, samples)), 3, time.thread_time)
    return {
        "samples": len(samples),
        "micro-batches": sum(len(p.microbatches) for p in choice.pipelines),
        "choose": choose_ms,
        "whole": whole_ms,
        "predicted": planner.write(0, choice)[0].prediction.iteration_ms,
        "bound": planner.lower_bound(choice, samples).iteration_ms,
        "MB": (peak - before) / 1e3,
    }


def measure_all(folder: Path) -> dict[str, dict[str, float]]:
    found = {}
    for n, modes in product(TOKENS, (ONE_MODE, THREE_MODES)):
        name = f"{n} tokens, 64 x {n // TOKENS_PER_REPLICA}, {len(modes)} modes, everything"
        with ProcessPoolExecutor(1, mp_context=get_context("spawn")) as fresh:
            found[name] = fresh.submit(measure, folder, n, modes).result()
    return found


if __name__ == "__main__":
    run_over_inputs(__doc__, measure_all, COLUMNS)
