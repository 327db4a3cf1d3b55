"""Network interfaces and fabric that MPI, NCCL and gloo use."""

import ctypes
import os
import platform
import socket
from collections.abc import Iterator
from pathlib import Path

from dynapipe_hpc.experiment.doctor.finding import Case, Finding, Level
from dynapipe_hpc.job.world import STARTED

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
