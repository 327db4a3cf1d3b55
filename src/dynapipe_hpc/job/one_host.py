"""Settings that keep the ranks of one host off the network."""

from collections.abc import Iterator, MutableMapping
from contextlib import contextmanager

from dynapipe_hpc.job.started import Started

Environment = MutableMapping[str, str]


@contextmanager
def shared_memory_only(started: Started, environment: Environment) -> Iterator[None]:
    """Lets MPI start without the network where one host is all there is.

    Otherwise ranks would listen for others that may come, with Open MPI on all interfaces. A
    process alone needs no shared memory either: nobody would remove the segment of 16.8 MB that
    Open MPI leaves without a launcher. What users have set stays as it is. Afterwards the
    environment is as it was, since processes that this one starts may belong to other jobs.

    Args:
        started: How this process was started.
        environment: Its variables, which MPI and UCX read when MPI starts.
    """
    settings = {
        # Shared memory by its name of Open MPI 3 and 4, which 5 takes, too: there `sm` is a stub.
        "OMPI_MCA_btl": "self,vader" if started.size > 1 else "self",
        "UCX_TLS": "self,sm",  # MPICH, and Open MPI over UCX
    }
    added = settings.keys() - environment.keys() if started.is_on_one_host else set()
    environment.update({name: settings[name] for name in added})
    try:
        yield
    finally:
        for name in added:
            del environment[name]


def prefer_loopback(started: Started, environment: Environment) -> None:
    """Lets NCCL and gloo use the loopback interface where one host is all there is."""
    if started.is_on_one_host:
        environment.setdefault("NCCL_SOCKET_IFNAME", "lo")
        environment.setdefault("GLOO_SOCKET_IFNAME", "lo")
