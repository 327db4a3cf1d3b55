"""Check of a cluster in ten minutes: a report to send home.

    sbatch --nodes=N --ntasks-per-node=G --time=10 slurm/smoke.sbatch OUT.json
    mpiexec -n N python -m cluster.smoke OUT.json

Every rank takes part, without GPUs, torch or data. OUT.json is written again after every check, so
that it tells which one did not end; it has no names of hosts, users or folders. A check that takes
too long ends the job, so those that might come last.
"""

import json
import signal
import sys
import threading
import time
import traceback
from collections.abc import Callable, Mapping
from pathlib import Path

from cluster.facts import facts
from cluster.one_sided import accesses, atomics
from cluster.threads import collectives, threads
from dynapipe_hpc.data.errors import print_error
from dynapipe_hpc.job.job import Job
from dynapipe_hpc.job.world import MPI
from growth.steps_of_a_rank import measure

Check = Callable[[Job], Mapping[str, object]]


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
