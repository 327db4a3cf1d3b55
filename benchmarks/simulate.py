"""Time of making a schedule and of simulating it.

    python benchmarks/simulate.py [--json OUT.json]

Times in microseconds of processor time, medians of one thread: of kernels, across the border to
Python, and of the functions around them, which take and return schedules.
"""

import argparse
import json
import statistics
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np

from dynapipe_hpc import _kernels
from dynapipe_hpc.job.machine import machine_facts
from dynapipe_hpc.plan.cluster import Link
from dynapipe_hpc.planner.cost.cost_model import StageCosts
from dynapipe_hpc.planner.schedule.cyclic import cyclic
from dynapipe_hpc.planner.schedule.one_f_one_b import one_f_one_b
from dynapipe_hpc.planner.schedule.schedule_rule import kernel_link
from dynapipe_hpc.planner.schedule.simulate import simulate

SIZES = ((13, 4), (35, 4), (115, 4), (32, 8))  # (n_microbatches, n_stages)
LINK = Link()


def drawn_costs(n_microbatches: int, n_stages: int) -> StageCosts:
    stream = np.random.default_rng(0)
    forward_ms = stream.uniform(1, 3, (n_microbatches, n_stages))
    none = np.zeros_like(forward_ms)
    return StageCosts.from_times(
        forward_ms=forward_ms,
        backward_ms=2 * forward_ms,
        weight_ms=forward_ms,
        splitting_ms=none,
        boundary_bytes=stream.uniform(1e6, 3e6, forward_ms.shape),
        stored_bytes=np.ones_like(forward_ms),
        forward_transient_bytes=none,
        backward_transient_bytes=none,
    )


def median_us(work: Callable[[], object], n_repeats: int = 9, n_calls: int = 200) -> float:
    times_us = []
    for _ in range(n_repeats):
        started_s = time.thread_time()
        for _ in range(n_calls):
            work()
        times_us.append(1e6 * (time.thread_time() - started_s) / n_calls)
    return statistics.median(times_us)


def measure(n_microbatches: int, n_stages: int) -> dict[str, float]:
    costs = drawn_costs(n_microbatches, n_stages)
    limit, static = np.full(n_stages, float(n_stages)), np.zeros(n_stages)
    schedule = cyclic(costs, limit)
    codes = schedule.codes
    link = kernel_link(LINK)
    return {
        "simulate kernel": median_us(lambda: _kernels.simulate(codes, costs.checked, static, link)),
        "simulate": median_us(lambda: simulate(schedule, costs, LINK, static)),
        "cyclic kernel": median_us(lambda: _kernels.cyclic_schedule(costs.checked, limit)),
        "cyclic": median_us(lambda: cyclic(costs, limit)),
        "1f1b": median_us(lambda: one_f_one_b(costs, limit)),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--json", type=Path)
    arguments = parser.parse_args()
    results = {f"{m} micro-batches x {s} stages": measure(m, s) for m, s in SIZES}
    columns = list(next(iter(results.values())))
    print(f"{'[us]':27}", *columns, sep="  ")
    for name, row in results.items():
        print(f"{name:27}", *(f"{row[c]:{len(c)}.1f}" for c in columns), sep="  ")
    if arguments.json:
        machine = machine_facts(n_ranks=1)
        arguments.json.write_text(json.dumps({"machine": machine, "us": results}, indent=1))


if __name__ == "__main__":
    main()
