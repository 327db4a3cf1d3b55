"""Machine of a run: facts for its run folder, and warnings about too few cores."""

import os
import platform
from contextlib import suppress
from functools import cache
from importlib import metadata
from pathlib import Path

import dynapipe_hpc
from dynapipe_hpc.job.job import Job
from dynapipe_hpc.job.slurm import read_slurm_job
from dynapipe_hpc.job.world import STARTED

PROCESSES, CGROUPS = Path("/proc"), Path("/sys/fs/cgroup")


@cache
def machine_facts(n_ranks: int) -> dict[str, str | int]:
    """Host, processors, launcher and software versions by name, as plain values."""
    processor = platform.processor()
    with suppress(OSError):
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
        names = (line.partition(":")[2].strip() for line in lines if line.startswith("model name"))
        processor = next(names, platform.machine())
    facts: dict[str, str | int] = {
        "host": platform.node(),
        "system": platform.platform(),
        "processor": processor,
        "cores": os.cpu_count() or 0,
        "ranks": n_ranks,
        "launcher": STARTED.launcher or "none",
        "cores_per_rank": STARTED.n_cores,
        "python": platform.python_version(),
        "dynapipe-hpc": dynapipe_hpc.__version__,
    }
    slurm_job = read_slurm_job(os.environ)
    if slurm_job is not None:
        facts["slurm_job"] = slurm_job.name
    for package in ("torch", "numpy", "mpi4py", "h5py"):
        facts[package] = metadata.version(package)
    return facts


def usable_bytes() -> int:
    """Memory of the host that the batch system or a container lets this process use."""
    total_bytes = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    lines = (PROCESSES / "self" / "cgroup").read_text().splitlines()
    own_cgroup = next((line.split(":", 2)[2] for line in lines if line.startswith("0::")), "/")
    group = CGROUPS / own_cgroup.lstrip("/")
    limits = [folder / "memory.max" for folder in (group, *group.parents)]
    texts = [limit.read_text().strip() for limit in limits if limit.is_file()]
    return min([total_bytes, *(int(limit) for limit in texts if limit != "max")])


def crowded_hosts(job: Job, threads: int) -> list[str]:
    """A warning per host with too few cores for its ranks, on the first rank (collective)."""
    on_host = job.on_this_host()
    n_ranks, n_visible = on_host.size, len(set().union(*on_host.gather(os.sched_getaffinity(0))))
    n_cores, n_wanted = min(n_visible, n_ranks * STARTED.n_cores), threads + 1
    is_crowded = on_host.is_first and n_ranks * n_wanted > n_cores
    on_host.free()
    warning = (
        f"{platform.node()} has {n_cores} cores for {n_ranks} x {n_wanted} threads (ranks x "
        "training.threads and a planner), which will delay each other; request more cores "
        f"(--cpus-per-task={n_wanted}), or use fewer ranks per host, or fewer threads"
    )
    return [each for each in job.gather(warning * is_crowded) if each]
