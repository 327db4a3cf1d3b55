"""Do two planner threads plan twice as fast as one?

    python benchmarks/planner_threads.py [FOLDER] [--json OUT.json]

FOLDER (default ../shared) holds the inputs, see a100_inputs.py. Plans are made from sample lengths
to checked bytes, with the default setting; each thread makes the same ones, for two seconds.
Needs as many idle cores as threads: `cores_busy` is the processor time of the process over wall
time.
"""

import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from itertools import cycle
from pathlib import Path

from a100_inputs import LENGTHS, ONE_MODE, a100_cluster, a100_devices, a100_table, batches
from dynapipe_hpc.plan.codec import encode_plans
from dynapipe_hpc.planner.make_plans import Planner
from measured import run_over_inputs

COLUMNS = {
    "one_thread_per_s": "{:.1f}",
    "two_threads_per_s": "{:.1f}",
    "speed_up": "{:.2f}",
    "cores_busy": "{:.2f}",
}
RUN_S = 2.0


def plan_for(plan: Callable[[int], object], run_s: float) -> int:
    """Number of plans that one thread makes in that time."""
    started_s = time.perf_counter()
    for n_done, batch in enumerate(cycle(range(3))):
        if time.perf_counter() - started_s > run_s:
            return n_done
        plan(batch)
    raise AssertionError


def plans_per_s(plan: Callable[[int], object], n_threads: int) -> tuple[float, float]:
    """Plans per second of all threads, and how many cores were busy."""
    with ThreadPoolExecutor(n_threads) as pool:
        started_s, started_cpu_s = time.perf_counter(), time.process_time()
        runs = [pool.submit(plan_for, plan, RUN_S) for _ in range(n_threads)]
        n_plans = sum(run.result() for run in runs)
        wall_s, cpu_s = time.perf_counter() - started_s, time.process_time() - started_cpu_s
    return n_plans / wall_s, cpu_s / wall_s


def measure(planner: Planner, folder: Path, name: str) -> dict[str, float]:
    samples = batches(folder, name)

    def plan(batch: int) -> object:
        return encode_plans(planner.make_plans(0, samples[batch % len(samples)]))

    plan(0)
    one, _ = plans_per_s(plan, 1)
    two, cores_busy = plans_per_s(plan, 2)
    return {
        "one_thread_per_s": one,
        "two_threads_per_s": two,
        "speed_up": two / one,
        "cores_busy": cores_busy,
    }


def measure_all(folder: Path) -> dict[str, dict[str, float]]:
    return {
        f"{name} x{n_replicas}": measure(
            a100_devices(a100_table(folder), a100_cluster(n_replicas), modes=ONE_MODE).planner(),
            folder,
            name,
        )
        for name in LENGTHS
        for n_replicas in (1, 2)
    }


if __name__ == "__main__":
    run_over_inputs(__doc__, measure_all, COLUMNS)
