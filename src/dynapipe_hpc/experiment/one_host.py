"""Settings that keep the ranks of one host off the network."""

from collections.abc import MutableMapping

from dynapipe_hpc.experiment.started import Started

_LOOPBACK = {"GLOO_SOCKET_IFNAME": "lo", "NCCL_SOCKET_IFNAME": "lo"}


def stay_on_host(started: Started, environment: MutableMapping[str, str]) -> None:
    """Lets a job of one host use shared memory and the loopback interface; before MPI starts.

    Open MPI would listen on all interfaces otherwise, for ranks that may come. What users have set
    stays as it is.

    Args:
        started: How this process was started.
        environment: Its variables, which MPI, gloo and NCCL read.
    """
    if not started.is_on_one_host:
        return
    environment.setdefault("OMPI_MCA_btl", "self,sm" if started.size > 1 else "self")
    for name, interface in _LOOPBACK.items():
        environment.setdefault(name, interface)
