"""Network interfaces that MPI, NCCL and gloo are configured to use."""

import os
import platform
import socket
from collections.abc import Iterator

from dynapipe_hpc.experiment.doctor.case import Case
from dynapipe_hpc.experiment.doctor.check_fabric import check_fabric
from dynapipe_hpc.experiment.doctor.finding import Finding, Level
from dynapipe_hpc.job.world import STARTED

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
