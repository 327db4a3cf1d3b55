"""Settings that keep the ranks of one host off the network."""

from collections.abc import MutableMapping

from dynapipe_hpc.experiment.started import Started

_SETTINGS = {
    "UCX_TLS": "self,sm",  # MPICH, and Open MPI over UCX
    "GLOO_SOCKET_IFNAME": "lo",
    "NCCL_SOCKET_IFNAME": "lo",
}


def stay_on_host(started: Started, environment: MutableMapping[str, str]) -> None:
    """Lets a job of one host use shared memory and the loopback interface; before MPI starts.

    Otherwise ranks would listen for others that may come, with Open MPI on all interfaces. What
    users have set stays as it is.

    Args:
        started: How this process was started.
        environment: Its variables, which MPI, UCX, gloo and NCCL read.
    """
    if not started.is_on_one_host:
        return
    environment.setdefault("OMPI_MCA_btl", "self,sm" if started.size > 1 else "self")
    for name, value in _SETTINGS.items():
        environment.setdefault(name, value)
