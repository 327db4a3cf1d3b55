"""Growth of a job's costs with its ranks, from 2 to 128 here, and to 4,096 by a model.

    PYTHONPATH=benchmarks python -m growth.measure [--sizes 2 4 ...] [--json OUT.json]

Every size is a job of real ranks, without torch, that count as being on hosts of eight. On few
cores their times say little, but the numbers of calls are those of a cluster. A model is fitted to
the numbers, and prices them with the times of single calls on a cluster.
"""

import argparse
import json
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path

from growth.count_calls import KINDS
from growth.model import CLUSTER, at, fit, times_us
from growth.steps_of_a_rank import PLAN_BYTES
from measured import write_json

SIZES = (2, 4, 8, 16, 32, 64, 128)
RANKS_PER_HOST = 8
LARGE = (1024, 4096)
LIMIT_S = 500

Steps = Mapping[str, Mapping[str, float]]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--sizes", type=int, nargs="+", default=SIZES)
    parser.add_argument("--json", type=Path)
    arguments = parser.parse_args()
    measured = {size: measure(size) for size in arguments.sizes}
    laws = laws_of(measured)
    modelled = {size: model(laws, size) for size in LARGE}
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
    mpiexec = Path(sys.prefix) / "bin" / "mpiexec"
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder) / "found.json"
        ranks = [sys.executable, "-m", "growth.steps_of_a_rank", str(RANKS_PER_HOST), str(out)]
        subprocess.run([mpiexec, "-n", str(n_ranks), *ranks], check=True, timeout=LIMIT_S)
        found: Steps = json.loads(out.read_text())
    print(f"{n_ranks} ranks measured", flush=True)
    return found


def laws_of(measured: Mapping[int, Steps]) -> Mapping[str, Mapping[str, list[float]]]:
    """Coefficients of every count, by step and kind.

    What opens a store is left out: it happens once, and jumps with the second host.
    """
    sizes = list(measured)
    hosts = [hosts_of(size) for size in sizes]
    steps = [step for step in measured[sizes[0]] if not step.startswith("open")]
    return {
        step: {kind: fit(sizes, hosts, column(measured, step, kind)) for kind in KINDS}
        for step in steps
    }


def column(measured: Mapping[int, Steps], step: str, kind: str) -> Sequence[float]:
    return [found[step][kind] for found in measured.values()]


def model(laws: Mapping[str, Mapping[str, list[float]]], n_ranks: int) -> Mapping[str, float]:
    """Times of a job of a size that is not measured."""
    n_hosts = hosts_of(n_ranks)
    counts = {
        step: {kind: at(law, n_ranks, n_hosts) for kind, law in kinds.items()}
        for step, kinds in laws.items()
    }
    return times_us(counts, n_ranks, n_hosts, PLAN_BYTES, CLUSTER)


def print_counts(measured: Mapping[int, Steps]) -> None:
    sizes = list(measured)
    print(f"\n{'most calls of any rank':32}", *(f"{size:>8}" for size in sizes))
    for step in measured[sizes[0]]:
        for kind in (*KINDS, "median_ms"):
            values = column(measured, step, kind)
            if any(values):
                print(f"{f'{step}: {kind}':32}", *(f"{value:8.4g}" for value in values))
    megabytes = [found["open the store"]["window_bytes"] / 1e6 for found in measured.values()]
    per_host = [mb / hosts_of(size) for size, mb in zip(sizes, megabytes, strict=True)]
    print(f"{'windows of the store, MB per host':32}", *(f"{mb:8.3f}" for mb in per_host))


if __name__ == "__main__":
    main()
