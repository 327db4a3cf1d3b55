"""Settings with which MPI starts: on one host, and for Open MPI in a virtual environment."""

import os
import sys
from collections.abc import Iterator, MutableMapping
from contextlib import contextmanager
from pathlib import Path

from dynapipe_hpc.job.launch import LaunchEnvironment

Environment = MutableMapping[str, str]


def prefer_loopback(started: LaunchEnvironment, environment: Environment) -> None:
    """Makes NCCL and gloo use the loopback interface if the job runs on one host."""
    if started.is_on_one_host:
        environment.setdefault("NCCL_SOCKET_IFNAME", "lo")
        environment.setdefault("GLOO_SOCKET_IFNAME", "lo")


OF_RANKS = Path(__file__).parent / "open_mpi" / "openmpi-mca-params.conf"
OF_LAUNCHER = Path(__file__).parent / "open_mpi" / "prte-mca-params.conf"
_ROOT = ("OMPI_ALLOW_RUN_AS_ROOT", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM")


def is_own_open_mpi() -> bool:
    """Whether the loaded MPI library is the virtual environment's own, from the extra [local]."""
    return _is_open_mpi() and _is_loaded(str(Path(sys.prefix).resolve() / "lib" / "libmpi.so"))


def _is_open_mpi() -> bool:
    # Other libraries may be called libmpi.so, too; this one is part of every Open MPI.
    return _is_loaded("/libopen-pal.so")


def _is_loaded(library: str) -> bool:
    return os.fsencode(library) in Path("/proc/self/maps").read_bytes()


def has_settings(file: Path) -> bool:
    """Whether a settings file sets anything; the file of a new Open MPI has comments only."""
    lines = file.read_text().splitlines() if file.is_file() else []
    return any(line.strip() and not line.lstrip().startswith("#") for line in lines)


def permission_for_root() -> str:
    """Hint on what root has to type first: Open MPI starts no rank that could print it."""
    if os.geteuid() or not _is_open_mpi() or all(name in os.environ for name in _ROOT):
        return ""
    return f"; as root, first: export {' '.join(f'{name}=1' for name in _ROOT)}"


@contextmanager
def mpi_settings(
    started: LaunchEnvironment, environment: Environment, *, is_own: bool
) -> Iterator[None]:
    """Sets variables for the block that starts MPI, and removes them after it.

    Variables that users have set are kept. Others are removed, as processes that this one starts
    may be ranks of another job. Open MPI does not start without HOME, which containers and services
    may lack. The Open MPI of the virtual environment (`is_own`) is told where it is, as it looks
    where it was built, and reads this package's settings after the user's and the environment's.

    If the job runs on one host, MPI does without the network: otherwise ranks listen for
    connections, with Open MPI on all interfaces. A single process does without shared memory, too:
    without a launcher nothing would remove the segment of 16.8 MB that Open MPI leaves.
    """
    variables = {"HOME": (home := _home())}
    if is_own:
        etc = Path(sys.prefix) / "etc" / OF_RANKS.name
        files = (Path(home) / ".openmpi" / "mca-params.conf", etc, OF_RANKS)
        variables["OPAL_PREFIX"] = sys.prefix
        variables["OMPI_MCA_mca_base_param_files"] = ",".join(map(str, files))
    if started.is_on_one_host:
        # The name of shared memory in Open MPI 3 and 4; 5 accepts it too, but `sm` is a stub there.
        variables["OMPI_MCA_btl"] = "self,vader" if started.size > 1 else "self"
        variables["UCX_TLS"] = "self,sm"  # MPICH, and Open MPI over UCX
    added = variables.keys() - environment.keys()
    environment.update({name: variables[name] for name in added})
    try:
        yield
    finally:
        for name in added:
            del environment[name]


def _home() -> str:
    """The user's home, where Open MPI looks for settings; the root folder if it is unknown."""
    try:
        return str(Path.home())
    except RuntimeError:  # neither HOME nor an entry of the user
        return os.sep
