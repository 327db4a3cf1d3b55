"""Check of a cluster in ten minutes: a report to send home.

    sbatch --nodes=N --ntasks-per-node=G --time=10 slurm/smoke.sbatch OUT.json
    mpiexec -n N python -m cluster.smoke OUT.json

Every rank takes part, without GPUs, torch or data. OUT.json is written again after every check, so
that it tells which one did not end; it has no names of hosts, users or folders. A check that takes
too long ends the job, so those that might come last.
"""

import json
import os
import re
import signal
import sys
import threading
import time
import traceback
from collections.abc import Callable, Mapping
from pathlib import Path

import numpy as np

from cluster.one_sided import accesses, atomics, summary
from cluster.steps_of_a_rank import measure
from dynapipe_hpc.data.errors import print_error
from dynapipe_hpc.job.job import Job
from dynapipe_hpc.job.machine import machine_facts
from dynapipe_hpc.job.world import MPI, STARTED

Check = Callable[[Job], Mapping[str, object]]
N_ALONE = 200
_SETTINGS = ("OMPI_MCA_", "UCX_", "HCOLL_", "UCC_", "MPIR_CVAR_", "FI_", "NCCL_", "PMIX_MCA_")
_LIBRARIES = re.compile(
    r"/lib(pmix|pmi2?|ucp|uct|hcoll|ucc|fabric|psm2|mpi|mpi_cray|mlx5)[-.\w]*\.so"
)
_CARDS = Path("/sys/class/infiniband")
_STARTED, _CLOCK_TICKS = 19, os.sysconf("SC_CLK_TCK")


def age_s() -> float:
    """Seconds since this process was started, by the clock of the system."""
    started = Path("/proc/self/stat").read_text().rpartition(")")[2].split()[_STARTED]
    return time.clock_gettime(time.CLOCK_BOOTTIME) - int(started) / _CLOCK_TICKS


def facts(job: Job) -> Mapping[str, object]:
    """Facts of all ranks; those that differ between ranks are listed with their numbers."""
    ready_s = age_s()
    on_host = job.on_this_host()
    n_hosts = sum(job.all_gather_int(int(on_host.is_first)))
    machine = {k: v for k, v in machine_facts(job.size).items() if k not in ("host", "slurm_job")}
    oldest_s, youngest_s = job.all_reduce_max([ready_s, -ready_s])
    return {
        **machine,
        "hosts": n_hosts,
        "ranks_per_host": int(job.all_reduce_max([on_host.size])[0]),
        "interface": STARTED.interface or "none",
        "library": MPI.Get_library_version().splitlines()[0].strip("\0"),
        "standard": ".".join(map(str, MPI.Get_version())),
        "loaded": alike(job, libraries()),
        "cards": alike(job, cards()),
        "settings": alike(job, settings()),
        "start_to_mpi_s": {"first": -youngest_s, "last": oldest_s},
    }


def alike(job: Job, text: str) -> Mapping[str, int]:
    """Number of ranks per text; on the first rank only."""
    texts = job.gather(text)
    return {each: texts.count(each) for each in sorted(set(texts))}


def libraries() -> str:
    """Communication libraries that this process has loaded, by file name."""
    paths = set(re.findall(r"/\S+", Path("/proc/self/maps").read_text()))
    return " ".join(sorted({Path(path).name for path in paths if _LIBRARIES.search(path)}))


def cards() -> str:
    """Network cards of this host: kind, firmware, state and rate."""
    if not _CARDS.is_dir():
        return "none"
    return "; ".join(_card(card) for card in sorted(_CARDS.iterdir())) or "none"


def _card(card: Path) -> str:
    names = ("hca_type", "fw_ver", "ports/1/link_layer", "ports/1/state", "ports/1/rate")
    values = [(card / name).read_text().strip() for name in names if (card / name).exists()]
    return " ".join([card.name, *values])


def settings() -> str:
    """Settings of communication libraries in the environment, without folders."""
    names = sorted(name for name in os.environ if name.startswith(_SETTINGS))
    return " ".join(
        f"{name}={value}"
        for name in names
        if "/" not in (value := os.environ[name]) and name != "OMPI_MCA_PREFIXES"
    )


def collectives(job: Job) -> Mapping[str, object]:
    """Times in us of small all-reduces and barriers, of one thread."""
    return {
        "all-reduce": _median_us(lambda: job.all_reduce_max([job.rank] * 8)),
        "barrier": _median_us(job.barrier),
    }


def threads(job: Job) -> Mapping[str, object]:
    """All-reduces of two threads on two communicators, with checked sums.

    Some libraries hand collectives over to HCOLL or UCC, which are not made for that everywhere.
    """
    comms = [MPI.Intracomm(job.comm.Dup()) for _ in range(2)]
    wrong: list[int] = []
    started_s = time.perf_counter()
    workers = [threading.Thread(target=_sum, args=(comm, wrong)) for comm in comms]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    took_us = 1e6 * (time.perf_counter() - started_s) / N_ALONE
    n_wrong = int(job.all_reduce_sum([len(wrong)])[0])
    for comm in comms:
        comm.Free()
    return {"all-reduce, two threads": took_us, "n_wrong": n_wrong}


def _sum(comm: MPI.Intracomm, wrong: list[int]) -> None:
    n_ranks = comm.Get_size()
    for i in range(N_ALONE):
        summed = np.empty(4)
        comm.Allreduce(np.full(4, float(i)), summed)
        if not np.array_equal(summed, np.full(4, float(i * n_ranks))):
            wrong.append(i)


def _median_us(work: Callable[[], object]) -> Mapping[str, float]:
    times_us = list[float]()
    for _ in range(N_ALONE):
        started_s = time.perf_counter()
        work()
        times_us.append(1e6 * (time.perf_counter() - started_s))
    return summary(times_us)


def steps(_: Job) -> Mapping[str, object]:
    """Steps of a run at full size: calls and times of planners and ranks."""
    return measure()


CHECKS: Mapping[str, tuple[Check, float]] = {
    "facts": (facts, 60.0),
    "collectives": (collectives, 60.0),
    "one-sided accesses": (accesses, 90.0),
    "atomic accesses": (atomics, 60.0),
    "steps of a run": (steps, 180.0),
    "collectives of two threads": (threads, 90.0),
}
"""Checks and their time limits in seconds, in order."""


class Report:
    """The report, which the first rank writes."""

    def __init__(self, path: Path, job: Job) -> None:
        """Writes to `path` what `job` finds."""
        self._path, self._job = path, job
        self._checks: dict[str, Mapping[str, object]] = {}

    def add(self, name: str, status: str, seconds: float, found: Mapping[str, object]) -> None:
        """Adds what became of a check, and writes the report."""
        if self._job.is_first:
            line = {"status": status, "seconds": round(seconds, 3), "found": found}
            self._checks[name] = line
            text = json.dumps({"checks": self._checks}, indent=1) + "\n"
            self._path.write_text(text, encoding="utf-8")
            print(f"{name}: {status}, {seconds:.1f} s", flush=True)


def run_check(job: Job, name: str, report: Report) -> None:
    """Runs a check on all ranks; ends the job if it takes too long, or fails on a rank."""
    check, limit_s = CHECKS[name]
    started_s = time.monotonic()

    def give_up() -> None:
        report.add(name, f"did not end within {limit_s:g} s", limit_s, {})
        signal.alarm(5)
        MPI.COMM_WORLD.Abort(1)

    limit = threading.Timer(limit_s if job.is_first else 2 * limit_s, give_up)
    limit.daemon = True
    limit.start()
    found = check(job)
    job.barrier()
    limit.cancel()
    report.add(name, "done", time.monotonic() - started_s, found)


def main() -> None:
    if len(sys.argv) != 2:
        raise SystemExit("usage: python -m cluster.smoke OUT.json")
    job = Job(MPI.COMM_WORLD)
    report = Report(Path(sys.argv[1]), job)
    for name in CHECKS:
        try:
            run_check(job, name, report)
        except Exception as error:
            traceback.print_exc()
            print_error(f"rank {job.rank}: {name} failed: {error}")
            report.add(name, f"failed: {type(error).__name__}", 0.0, {})
            MPI.COMM_WORLD.Abort(1)


if __name__ == "__main__":
    main()
