"""Settings that keep a job on one host off the network."""

from collections.abc import Iterator, MutableMapping
from contextlib import contextmanager

from dynapipe_hpc.job.launch_environment import LaunchEnvironment

Environment = MutableMapping[str, str]


@contextmanager
def shared_memory_only(started: LaunchEnvironment, environment: Environment) -> Iterator[None]:
    """Lets MPI start without the network if the job runs on one host.

    Otherwise ranks would listen for connections, with Open MPI on all interfaces. A process alone
    does without shared memory too, because without a launcher nothing would remove the segment of
    16.8 MB that Open MPI leaves. Variables that users have set are kept. The environment is
    restored afterwards, since processes that this one starts may belong to other jobs.

    Args:
        started: How this process was started.
        environment: Environment variables, which MPI and UCX read when MPI starts.
    """
    settings = {
        # The name of shared memory in Open MPI 3 and 4; 5 accepts it too, but `sm` is a stub there.
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


def prefer_loopback(started: LaunchEnvironment, environment: Environment) -> None:
    """Makes NCCL and gloo use the loopback interface if the job runs on one host."""
    if started.is_on_one_host:
        environment.setdefault("NCCL_SOCKET_IFNAME", "lo")
        environment.setdefault("GLOO_SOCKET_IFNAME", "lo")
