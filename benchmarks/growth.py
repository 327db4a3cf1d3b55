"""Growth of a job's costs with its ranks, from 2 to 128 here, and to 4,096 by a model.

    python benchmarks/growth.py [--sizes 2 4 ...] [--json OUT.json]

Every size is a job of real ranks, without torch, that count as being on hosts of eight. On few
cores their times say little, but the numbers of calls are those of a cluster. A law is fitted to
each count, and a model prices the counts with the times of single calls on a cluster: nodes with
eight GPUs and one card of InfiniBand HDR (200 Gb/s).
"""

import argparse
import json
import math
import os
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np

from cluster.steps_of_a_rank import KINDS, PLAN_BYTES
from measured import BIN, write_json

SIZES = (2, 4, 8, 16, 32, 64, 128)
RANKS_PER_HOST = 8
LARGE = (1024, 4096)
LIMIT_S = 500
# An access and its flush to shared memory, with Open MPI on the machine of this benchmark, and a
# call from Python, without waiting.
NEAR_US, CALL_US = 0.5, 5.0
# "HBv3-series virtual machine performance", Microsoft Learn: latency of a message between hosts in
# one direction, and 192 Gb/s.
FAR_US, BYTES_PER_US = 1.2, 24_000

Steps = Mapping[str, Mapping[str, float]]
Laws = Mapping[str, Mapping[str, list[float]]]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--sizes", type=int, nargs="+", default=SIZES)
    parser.add_argument("--json", type=Path)
    arguments = parser.parse_args()
    measured = {size: measure(size) for size in arguments.sizes}
    laws = laws_of(measured)
    modelled = {size: times_us(laws, size) for size in LARGE}
    print_counts(measured)
    for size, found in modelled.items():
        print(f"\n{size} ranks on {hosts_of(size)} hosts, modelled:")
        for what, us in found.items():
            print(f"  {what:36} {us / 1e3:10.3f} ms")
    if arguments.json:
        results = {"measured": measured, "laws": laws, "modelled_us": modelled}
        write_json(arguments.json, results)


def hosts_of(n_ranks: int) -> int:
    return -(-n_ranks // RANKS_PER_HOST)


def measure(n_ranks: int) -> Steps:
    """Costs of the steps of a job of real ranks."""
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder) / "found.json"
        ranks = [sys.executable, "-m", "cluster.steps_of_a_rank", str(RANKS_PER_HOST), str(out)]
        subprocess.run(
            [BIN / "mpiexec", "-n", str(n_ranks), *ranks],
            check=True,
            timeout=LIMIT_S,
            env=os.environ | {"PYTHONPATH": str(Path(__file__).parent)},
        )
        found: Steps = json.loads(out.read_text())
    print(f"{n_ranks} ranks measured", flush=True)
    return found


def laws_of(measured: Mapping[int, Steps]) -> Laws:
    """Least-squares coefficients of every count by step and kind: constant, per host, per rank.

    What opens a store is left out: it happens once, and jumps with the second host.
    """
    terms = np.array([(1, hosts_of(size), size) for size in measured])

    def law(step: str, kind: str) -> list[float]:
        found, *_ = np.linalg.lstsq(terms, np.array(column(measured, step, kind), float))
        return [round(float(x), 3) + 0.0 for x in found]

    steps = [step for step in next(iter(measured.values())) if not step.startswith("open")]
    return {step: {kind: law(step, kind) for kind in KINDS} for step in steps}


def column(measured: Mapping[int, Steps], step: str, kind: str) -> Sequence[float]:
    return [found[step][kind] for found in measured.values()]


def times_us(laws: Laws, n_ranks: int) -> Mapping[str, float]:
    """Times of a job of a size that is not measured, if every one-sided access is waited for."""
    n_hosts = hosts_of(n_ranks)
    counts = {
        step: {kind: float(np.dot(law, (1, n_hosts, n_ranks))) for kind, law in kinds.items()}
        for step, kinds in laws.items()
    }
    # Up a tree and down again within a host; recursive doubling between hosts.
    near_steps, far_steps = math.log2(max(n_ranks / n_hosts, 1)), math.log2(n_hosts)
    all_reduce = 2 * near_steps * NEAR_US + far_steps * FAR_US + CALL_US
    access = 2 * FAR_US + CALL_US
    sent = n_ranks * PLAN_BYTES * (n_hosts - 1) / n_hosts
    return {
        "planner, per iteration it plans": counts["plan"]["one_sided"] * access
        + sent / BYTES_PER_US
        + n_ranks * CALL_US,
        "rank, per iteration: all-reduces": counts["agree"]["collectives"] * all_reduce,
        "rank, per iteration: one-sided": counts["take"]["one_sided"] * access,
    }


def print_counts(measured: Mapping[int, Steps]) -> None:
    print(f"\n{'most calls of any rank':32}", *(f"{size:>8}" for size in measured))
    for step in next(iter(measured.values())):
        for kind in (*KINDS, "median_ms"):
            values = column(measured, step, kind)
            if any(values):
                print(f"{f'{step}: {kind}':32}", *(f"{value:8.4g}" for value in values))
    per_host = [
        found["open the store"]["window_bytes"] / 1e6 / hosts_of(size)
        for size, found in measured.items()
    ]
    print(f"{'windows of the store, MB per host':32}", *(f"{mb:8.3f}" for mb in per_host))


if __name__ == "__main__":
    main()
