"""The machine of a job: launch, network, access to plans, software, GPUs, and memory of hosts."""

import os
import platform
import shutil
import socket
import sys
from collections.abc import Iterator, Mapping
from functools import cache
from importlib import metadata
from pathlib import Path
from types import ModuleType

import numpy as np

import dynapipe_hpc
from dynapipe_hpc.data.errors import InputError, RunError
from dynapipe_hpc.experiment.checks import check_torch, configured
from dynapipe_hpc.experiment.config import ExperimentConfig
from dynapipe_hpc.experiment.doctor.finding import Case, Finding, Level
from dynapipe_hpc.job.launch import library_name
from dynapipe_hpc.job.machine import crowded_hosts, shortage, usable_bytes
from dynapipe_hpc.job.mpi_settings import (
    OF_LAUNCHER,
    has_settings,
    is_own_open_mpi,
    permission_for_root,
)
from dynapipe_hpc.job.slurm import read_slurm_job
from dynapipe_hpc.job.world import MPI, STARTED
from dynapipe_hpc.store.config import StoreConfig
from dynapipe_hpc.store.mpi import MpiPlanStore
from dynapipe_hpc.store.plan_store import PlannerTurns
from dynapipe_hpc.store.ring_layout import RingLayout

_GB = 1e9
_SHARED = Path("/dev/shm")  # noqa: S108 - a fact of Linux, not a place for files of ours
_SLINGSHOT = "hsn"  # what the names of its interfaces begin with
_PLUGINS = ("libnccl-net*.so*", "librccl-net*.so*")
_GPU_AWARE = "MPICH_GPU_SUPPORT_ENABLED"
_PLAN_BYTES, _TIMEOUT_S = 65536, 60.0
_MORE = "python -m torch.utils.collect_env"


def check_launch(case: Case) -> Iterator[Finding]:
    """Launcher, MPI library, Slurm, hosts and cores (collective)."""
    n_hosts = sum(case.job.all_gather_int(int(case.on_host.is_first)))
    yield Finding("ranks", f"{case.job.size} on {n_hosts} host{'s' if n_hosts > 1 else ''}")
    yield Finding("launcher", STARTED.launcher or "none: a single process, started directly")
    yield Finding("PMI", STARTED.interface or "none")
    yield Finding("MPI", library_name(MPI.Get_library_version()))
    slurm_job = read_slurm_job(os.environ)
    yield Finding(
        "Slurm",
        f"job {slurm_job.name}, restarts {slurm_job.n_restarts}"
        if slurm_job
        else "none (SLURM_JOB_ID is not set)",
    )
    threads = case.config.training.threads if case.config else 1
    short = shortage(STARTED.n_cores, threads)
    if short and case.config:
        yield Finding("cores", short, Level.WARNING)
    else:
        yield Finding("cores", f"{STARTED.n_cores} per rank")
    for line in crowded_hosts(case.job, threads):
        yield Finding("cores of hosts", line, Level.WARNING)
    if STARTED.launcher is None and is_own_open_mpi():
        yield _mpiexec()


def _mpiexec() -> Finding:
    own_mpi, installed = Path(sys.prefix) / "bin" / "mpiexec", Path(sys.prefix) / "etc"
    if has_settings(installed / OF_LAUNCHER.name):
        return Finding("mpiexec", f"{own_mpi}{permission_for_root()}")
    return Finding(
        "mpiexec",
        f"{own_mpi}: starts no more ranks than there are cores; to allow more: "
        f"cp {OF_LAUNCHER} {installed}",
        Level.WARNING,
    )


def check_network(case: Case) -> Iterator[Finding]:
    """Settings that make GPUs slow on the fabric of a host, or deadlock; its first rank reports."""
    if not case.on_host.is_first:
        return
    if os.environ.get(_GPU_AWARE, "") not in ("", "0"):
        yield Finding(
            _GPU_AWARE,
            f"{os.environ[_GPU_AWARE]}: MPI that handles memory of GPUs can deadlock beside NCCL; "
            "set it to 0, as the files of slurm/sites do",
            Level.WARNING,
        )
    if not any(name.startswith(_SLINGSHOT) for _, name in socket.if_nameindex()):
        return
    if plugins := _plugins():
        yield Finding("plugin of NCCL", str(plugins[0]))
        return
    yield Finding(
        "plugin of NCCL",
        "no libnccl-net or librccl-net in LD_LIBRARY_PATH: between hosts, GPUs would use TCP "
        "instead of libfabric, many times slower; load the site's aws-ofi-nccl",
        Level.WARNING,
    )


def _plugins() -> list[Path]:
    """Files of plugins that NCCL finds; `NCCL_NET_PLUGIN` may name one by its path."""
    named = Path(os.environ.get("NCCL_NET_PLUGIN", ""))
    if named.is_file():
        return [named]
    folders = filter(None, os.environ.get("LD_LIBRARY_PATH", "").split(":"))
    return sorted(
        path for folder in folders for name in _PLUGINS for path in Path(folder).glob(name)
    )


def check_access(case: Case) -> Iterator[Finding]:
    """Sends a plan to every rank through a plan store, as runs do (collective)."""
    job, host = case.job, case.on_host.broadcast(case.job.rank)
    failure = ""
    try:
        store = MpiPlanStore(job.comm, 1, _PLAN_BYTES, host=host)
        if job.rank == store.planner_of(0):
            for rank in range(job.size):
                store.put(0, rank, _plan_of(rank), _TIMEOUT_S)
        is_right = store.take(0, job.rank, _TIMEOUT_S) == _plan_of(job.rank)
    except RunError as error:
        failure = str(error)
    failed = any(job.all_gather_int(bool(failure)))
    if failure:
        yield Finding("plan store", failure, Level.PROBLEM)
    if failed:
        return
    store.close()
    how = str(store.progress).removeprefix("plan store: ")
    if is_right:
        yield Finding("plan store", f"all bytes arrive, by {how}")
        return
    yield Finding(
        "plan store",
        f"other bytes arrive than were written, by {how}; use another MPI library, or another of "
        "its one-sided components (Open MPI: OMPI_MCA_osc)",
        Level.PROBLEM,
    )


def _plan_of(rank: int) -> bytes:
    return np.random.default_rng(rank).bytes(_PLAN_BYTES)


def check_software(case: Case) -> Iterator[Finding]:
    """Versions, and the GPU of this rank; torch may be missing or broken."""
    yield Finding("dynapipe-hpc", f"{dynapipe_hpc.__version__}, Python {platform.python_version()}")
    torch = _torch()
    # Devices are looked at by all ranks together, so by none if one cannot.
    all_have_it = all(case.job.all_gather_int(isinstance(torch, ModuleType)))
    if isinstance(torch, str):
        yield Finding("torch", torch, Level.PROBLEM)
        return
    yield Finding("torch", f"{metadata.version('torch')}; for its build and drivers: {_MORE}")
    if all_have_it:
        yield from torch.check_devices(case)


def circumstances_here(config: ExperimentConfig, n_ranks: int) -> Mapping[str, str]:
    """Circumstances of a job; without torch, only those that the configuration decides."""
    torch = _torch()
    if isinstance(torch, ModuleType):
        return dict(torch.circumstances_here(config, n_ranks))
    return configured(config)


@cache
def _torch() -> ModuleType | str:
    """The module of checks that need torch, or the reason why torch cannot be loaded."""
    try:
        check_torch()
    except InputError as error:
        return str(error)
    from dynapipe_hpc.experiment.doctor import torch_checks

    return torch_checks


def check_host(case: Case) -> Iterator[Finding]:
    """Memory and shared memory of each host (collective); its first rank reports."""
    if case.on_host.is_first:
        host, n_ranks = platform.node(), case.on_host.size
        yield _memory(case, host, n_ranks)
        yield _shared_memory(case, host, n_ranks)


def _memory(case: Case, host: str, n_ranks: int) -> Finding:
    subject, usable, torch = f"memory of {host}", usable_bytes(), _torch()
    text = f"{usable / _GB:.1f} GB for {n_ranks} rank{'s' if n_ranks > 1 else ''}"
    on_gpus = case.config and isinstance(torch, ModuleType) and torch.uses_gpus(case.config)
    if case.config is None or on_gpus:
        return Finding(subject, text)
    rank_bytes = case.config.cluster.device_memory_bytes
    text += f", which may use {rank_bytes / _GB:.1f} GB each (cluster.device_memory_bytes)"
    if n_ranks * rank_bytes <= usable:
        return Finding(subject, text)
    lower = f"{text}: more than the host has; lower it to {usable // n_ranks:,} or use more hosts"
    return Finding(subject, lower, Level.PROBLEM)


def _shared_memory(case: Case, host: str, n_ranks: int) -> Finding:
    subject = f"{_SHARED} of {host}"
    try:
        free_bytes = shutil.disk_usage(_SHARED).free
    except OSError as error:
        return Finding(subject, f"cannot be used: {error.strerror}; mount it", Level.PROBLEM)
    store = case.config.store if case.config else StoreConfig()
    n_all_ranks = case.config.cluster.n_ranks if case.config else case.job.size
    capacity = PlannerTurns(n_all_ranks, store.look_ahead).capacity
    needed = RingLayout(n_ranks, capacity, store.plan_bytes).ring_bytes
    text = f"{free_bytes / 1e6:,.0f} MB free, of which plans take up to {needed / 1e6:,.0f} MB"
    if needed <= free_bytes or "OMPI_MCA_osc_sm_backing_directory" in os.environ:
        return Finding(subject, text)
    return Finding(
        subject,
        f"{text}; remove files that killed jobs left there, make it larger (containers: "
        "--shm-size), lower store.plan_bytes or store.look_ahead, or let Open MPI use a local "
        "folder: OMPI_MCA_osc_sm_backing_directory",
        Level.PROBLEM,
    )
