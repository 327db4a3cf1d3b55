"""Memory of the hosts, and their shared memory, through which ranks of a host exchange data."""

import os
import platform
import shutil
from collections.abc import Iterator
from pathlib import Path

from dynapipe_hpc.experiment.doctor.check_software import computes_on_gpus
from dynapipe_hpc.experiment.doctor.finding import Case, Finding, Level
from dynapipe_hpc.job.machine import usable_bytes
from dynapipe_hpc.store.config import StoreConfig
from dynapipe_hpc.store.plan_store import PlannerTurns
from dynapipe_hpc.store.ring_layout import RingLayout

_GB = 1e9
_SHARED = Path("/dev/shm")  # noqa: S108 - a fact of Linux, not a place for files of ours
_CGROUPS = Path("/sys/fs/cgroup")
# Names of files that MPI libraries remove at the end of a job.
_LEFTOVERS = ("mpich_shm_*", "sm_segment.*", "osc_sm.*", "osc_rdma.*", "vader_segment.*")
_PROCESSES = Path("/proc")


def check_host(case: Case) -> Iterator[Finding]:
    """Memory, shared memory and leftovers of each host (collective); its first rank reports."""
    ranks = case.ranks_of_host
    if not case.on_host.is_first:
        return
    host = platform.node()
    yield _memory(case, host, len(ranks))
    yield _shared_memory(case, host, ranks)
    yield from _leftovers(host)


def _memory(case: Case, host: str, n_ranks: int) -> Finding:
    subject, usable = f"memory of {host}", usable_bytes()
    text = f"{usable / _GB:.1f} GB for {n_ranks} rank{'s' if n_ranks > 1 else ''}"
    if case.config is None or computes_on_gpus(case.config):
        return Finding(subject, text)
    each = case.config.cluster.device_memory_bytes
    text += f", which may use {each / _GB:.1f} GB each (cluster.device_memory_bytes)"
    if n_ranks * each <= usable:
        return Finding(subject, text)
    lower = f"{text}: more than the host has; lower it to {usable // n_ranks:,} or use more hosts"
    return Finding(subject, lower, Level.PROBLEM)


def _shared_memory(case: Case, host: str, ranks: list[int]) -> Finding:
    subject = f"{_SHARED} of {host}"
    try:
        free_bytes = shutil.disk_usage(_SHARED).free
    except OSError as error:
        return Finding(subject, f"cannot be used: {error.strerror}; mount it", Level.PROBLEM)
    needed = _store_bytes(case, ranks)
    text = f"{free_bytes / 1e6:,.0f} MB free, of which plans take up to {needed / 1e6:,.0f} MB"
    if needed <= free_bytes or "OMPI_MCA_osc_sm_backing_directory" in os.environ:
        return Finding(subject, text)
    return Finding(
        subject,
        f"{text}; make it larger (containers: --shm-size), lower store.plan_bytes or "
        "store.look_ahead, or let Open MPI use a local folder: OMPI_MCA_osc_sm_backing_directory",
        Level.PROBLEM,
    )


def _store_bytes(case: Case, ranks: list[int]) -> int:
    store = case.config.store if case.config else StoreConfig()
    n_ranks = case.config.cluster.n_ranks if case.config else case.job.size
    capacity = PlannerTurns(n_ranks, store.look_ahead).capacity
    return RingLayout(len(ranks), capacity, store.plan_bytes).ring_bytes


def _leftovers(host: str) -> Iterator[Finding]:
    """Files left by killed jobs: no process has them open."""
    # Sizes first: a job that ends meanwhile removes its files.
    files = [f for pattern in _LEFTOVERS for f in _SHARED.glob(pattern)]
    sizes = {file: size for file in files if (size := _size_of_ours(file)) is not None}
    left = sorted(set(sizes) - _mapped_files())
    if left:
        size = sum(sizes[file] for file in left)
        names = " ".join(str(file) for file in left[:3]) + (" ..." if len(left) > 3 else "")
        yield Finding(
            f"left on {host}",
            f"{len(left)} files of MPI jobs that were killed, {size / 1e6:.0f} MB; remove them: "
            f"rm {names}",
            Level.WARNING,
        )


def _size_of_ours(file: Path) -> int | None:
    try:
        status = file.stat()
    except OSError:
        return None
    return status.st_size if status.st_uid == os.getuid() else None


def _mapped_files() -> set[Path]:
    """Files in shared memory that processes of this user have mapped."""
    mapped: set[Path] = set()
    for maps in _PROCESSES.glob("[0-9]*/maps"):
        try:
            lines = maps.read_text().splitlines()
        except OSError:  # the process has ended, or belongs to another user
            continue
        mapped.update(Path(line[line.index("/dev/") :]) for line in lines if str(_SHARED) in line)
    return mapped
