"""The launch: launcher, Slurm, cores, the MPI library in use, and the network."""

import ctypes
import os
import platform
import socket
import sys
from collections.abc import Iterator
from pathlib import Path

from dynapipe_hpc.experiment.doctor.finding import Case, Finding, Level
from dynapipe_hpc.job.launch import library_name
from dynapipe_hpc.job.machine import crowded_hosts, shortage
from dynapipe_hpc.job.mpi_settings import (
    OF_LAUNCHER,
    has_settings,
    is_own_open_mpi,
    permission_for_root,
)
from dynapipe_hpc.job.slurm import read_slurm_job
from dynapipe_hpc.job.world import MPI, STARTED

_INFINIBAND = Path("/sys/class/infiniband")
_SLURM_FACTS = {
    "tasks": "SLURM_NTASKS",
    "nodes": "SLURM_JOB_NUM_NODES",
    "partition": "SLURM_JOB_PARTITION",
    "cores per task": "SLURM_CPUS_PER_TASK",
    "MB per node": "SLURM_MEM_PER_NODE",
}


def check_launch(case: Case) -> Iterator[Finding]:
    """Launcher, PMI, Slurm, hosts and cores (collective)."""
    n_hosts = sum(case.job.all_gather_int(int(case.on_host.is_first)))
    yield Finding("ranks", f"{case.job.size} on {n_hosts} host{'s' if n_hosts > 1 else ''}")
    yield Finding("launcher", STARTED.launcher or "none: a single process, started directly")
    yield Finding("PMI", STARTED.interface or "none")
    yield _slurm(case)
    threads = case.config.training.threads if case.config else 1
    short = shortage(STARTED.n_cores, threads)
    if short and case.config:
        yield Finding("cores", short, Level.WARNING)
    else:
        yield Finding("cores", f"{STARTED.n_cores} per rank")
    yield from (
        Finding("cores of hosts", line, Level.WARNING) for line in crowded_hosts(case.job, threads)
    )
    if STARTED.launcher is None and is_own_open_mpi():
        yield _mpiexec()


def _mpiexec() -> Finding:
    own_mpi, installed = Path(sys.prefix) / "bin" / "mpiexec", Path(sys.prefix) / "etc"
    if not has_settings(installed / OF_LAUNCHER.name):
        advice = f"cp {OF_LAUNCHER} {installed}"
        return Finding(
            "mpiexec",
            f"{own_mpi}: starts no more ranks than there are cores; to allow more: {advice}",
            Level.WARNING,
        )
    return Finding("mpiexec", f"{own_mpi}{permission_for_root()}")


def _slurm(case: Case) -> Finding:
    slurm_job = read_slurm_job(os.environ)
    if slurm_job is None:
        return Finding("Slurm", "none (SLURM_JOB_ID is not set)")
    facts = [
        f"{what} {os.environ[key]}" for what, key in _SLURM_FACTS.items() if os.environ.get(key)
    ]
    text = ", ".join([f"job {slurm_job.name}", f"restarts {slurm_job.n_restarts}", *facts])
    tasks = os.environ.get("SLURM_NTASKS") or str(case.job.size)
    if tasks == str(case.job.size):
        return Finding("Slurm", text)
    return Finding(
        "Slurm",
        f"{text}; but the job has {case.job.size} ranks: if that is unintended, start one per task",
        Level.WARNING,
    )


def check_mpi(case: Case) -> Iterator[Finding]:  # noqa: ARG001 - as all looks
    yield Finding("library", library_name(MPI.Get_library_version()))
    major, minor = MPI.Get_version()
    yield Finding("standard", f"MPI {major}.{minor}")
    abi = MPI.Get_abi_version()
    own_mpi = (
        f"the library's own, through {MPI.__file__.rpartition('/')[2].partition('.cpython')[0]}"
    )
    yield Finding("ABI", own_mpi if abi[0] < 0 else f"MPI standard ABI {abi[0]}.{abi[1]}")
    yield from _ucx()


def _ucx() -> Iterator[Finding]:
    if "Open MPI" in MPI.Get_library_version() and not _INFINIBAND.exists():
        remedy = "set OMPI_MCA_pml=ob1 and OMPI_MCA_osc=^ucx"
        yield Finding("UCX", f"no InfiniBand here: if Open MPI warns about UCX, {remedy}")


_SLINGSHOT = "hsn"  # what the names of its interfaces begin with
_DRIVER = Path("/sys/module/cxi_ss1/version")
_PLUGINS = ("libnccl-net*.so*", "librccl-net*.so*")
_GPU_AWARE = "MPICH_GPU_SUPPORT_ENABLED"


def check_fabric() -> Iterator[Finding]:
    """Versions of a host's fabric, and settings that make GPUs slow on it or deadlock."""
    if os.environ.get(_GPU_AWARE, "") not in ("", "0"):
        yield Finding(
            _GPU_AWARE,
            f"{os.environ[_GPU_AWARE]}: MPI that handles memory of GPUs can deadlock beside NCCL; "
            "set it to 0, as the files of slurm/sites do",
            Level.WARNING,
        )
    interfaces = [name for _, name in socket.if_nameindex() if name.startswith(_SLINGSHOT)]
    if not interfaces:
        return
    driver = f", driver {_DRIVER.read_text().strip()}" if _DRIVER.is_file() else ""
    yield Finding("Slingshot", f"{', '.join(interfaces)}{driver}; libfabric {_libfabric()}")
    network = os.environ.get("NCCL_NET", "")
    if plugins := _plugins():
        yield Finding("plugin of NCCL", f"{plugins[0]}{network and f', NCCL_NET={network}'}")
        return
    yield Finding(
        "plugin of NCCL",
        "no libnccl-net or librccl-net in LD_LIBRARY_PATH: between hosts, GPUs would use TCP "
        "instead of libfabric, many times slower; load the site's aws-ofi-nccl",
        Level.WARNING,
    )


def _libfabric() -> str:
    try:
        version: int = ctypes.CDLL("libfabric.so.1").fi_version()
    except OSError:
        return "cannot be loaded"
    return f"{version >> 16}.{version & 0xFFFF}"


def _plugins() -> list[Path]:
    """Files of plugins that NCCL finds; `NCCL_NET_PLUGIN` may name one by its path."""
    named = Path(os.environ.get("NCCL_NET_PLUGIN", ""))
    if named.is_file():
        return [named]
    folders = filter(None, os.environ.get("LD_LIBRARY_PATH", "").split(":"))
    return sorted(
        path for folder in folders for name in _PLUGINS for path in Path(folder).glob(name)
    )


# NCCL takes prefixes of names, the others full names or, in MPI, addresses.
_EXACT = ("OMPI_MCA_btl_tcp_if_include", "GLOO_SOCKET_IFNAME", "FI_TCP_IFACE")
_BEGINNINGS = ("NCCL_SOCKET_IFNAME",)


def check_network(case: Case) -> Iterator[Finding]:
    """The fabric, configured interfaces, and whether this host has them; its first rank reports."""
    if not case.on_host.is_first:
        return
    if STARTED.is_on_one_host:
        yield Finding("reach", "one host: shared memory and the loopback interface")
    else:
        yield Finding("reach", "several hosts: see docs/network.md for ports and settings")
    yield from check_fabric()
    names = [name for _, name in socket.if_nameindex()]
    for variable in (*_EXACT, *_BEGINNINGS):
        value = os.environ.get(variable, "")
        if value and not value.startswith("^"):
            yield _named(variable, value, names)


def _named(variable: str, value: str, names: list[str]) -> Finding:
    interfaces = [each for each in value.removeprefix("=").split(",") if "/" not in each]
    is_exact = variable in _EXACT or value.startswith("=")
    there = [
        each
        for each in interfaces
        if any(name == each or (name.startswith(each) and not is_exact) for name in names)
    ]
    if there or not interfaces:
        return Finding(variable, value)
    return Finding(
        variable,
        f"{value}, but {platform.node()} has {', '.join(names)}; name one of these",
        Level.PROBLEM,
    )
