"""Launcher of this process: rank and resources from its environment, and settings of MPI."""

import os
import sys
from collections.abc import Iterator, Mapping, MutableMapping
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

from dynapipe_hpc.data.errors import InputError


class Launcher(NamedTuple):
    """A program that starts processes, and the variables by which it tells them who they are."""

    name: str
    rank: str
    size: str
    local_rank: str
    local_size: str

    def started(self, environment: Mapping[str, str]) -> bool:
        return all(environment.get(name) for name in (self.rank, self.size, self.local_rank))


# The innermost first: an mpiexec may itself have been started by srun.
LAUNCHERS = (
    Launcher(
        "mpiexec of Open MPI",
        "OMPI_COMM_WORLD_RANK",
        "OMPI_COMM_WORLD_SIZE",
        "OMPI_COMM_WORLD_LOCAL_RANK",
        "OMPI_COMM_WORLD_LOCAL_SIZE",
    ),
    Launcher("mpiexec of MPICH", "PMI_RANK", "PMI_SIZE", "MPI_LOCALRANKID", "MPI_LOCALNRANKS"),
    Launcher("mpiexec of Cray", "PMI_RANK", "PMI_SIZE", "PMI_LOCAL_RANK", "PMI_LOCAL_SIZE"),
    # On several hosts the last variable is a list, such as 4(x2).
    Launcher(
        "srun",
        "SLURM_PROCID",
        "SLURM_STEP_NUM_TASKS",
        "SLURM_LOCALID",
        "SLURM_STEP_TASKS_PER_NODE",
    ),
)

# The variable by which a process recognizes the interface for meeting the others.
_INTERFACES = {
    "PMIX_NAMESPACE": "PMIx",
    "PMI_FD": "PMI",
    "PMI_RANK": "PMI",
    "PMI_CONTROL_PORT": "Cray PMI",
}


class LaunchEnvironment(NamedTuple):
    """Facts from the launcher of this process; None for what is unknown or unlimited."""

    launcher: str | None
    interface: str | None
    rank: int
    size: int
    local_rank: int
    is_on_one_host: bool
    n_cores: int


def read_number(environment: Mapping[str, str], name: str, default: int = 0) -> int:
    """Reads a number from a variable, or raises `InputError`; an empty one counts as absent."""
    value = environment.get(name) or default
    try:
        return int(value)
    except ValueError:
        raise InputError(f"{name} is {value!r}, not a number; unset it") from None


def device_index(local_rank: int, n_devices: int) -> int:
    """Index of a rank's GPU: the ranks of a host get its `n_devices` GPUs in turn."""
    return local_rank % n_devices


def read_started(environment: Mapping[str, str], n_usable_cores: int) -> LaunchEnvironment:
    """Reads how a process was started; raises `InputError` if a variable is not a number."""
    launcher = next((each for each in LAUNCHERS if each.started(environment)), None)
    names = (launcher.rank, launcher.size, launcher.local_rank) if launcher else ()
    rank, size, local_rank = [read_number(environment, name) for name in names] or (0, 1, 0)
    interface = next((name for key, name in _INTERFACES.items() if environment.get(key)), None)
    return LaunchEnvironment(
        launcher=launcher.name if launcher else None,
        interface=interface,
        rank=rank,
        size=size,
        local_rank=local_rank,
        is_on_one_host=(
            environment.get(launcher.local_size) == str(size) if launcher else interface is None
        ),
        # Without binding, only this variable tells how many cores a process may use.
        n_cores=min(
            n_usable_cores, read_number(environment, "SLURM_CPUS_PER_TASK", n_usable_cores)
        ),
    )


# The `srun --mpi` type of each library; the first name found in the version text counts.
_SRUN_TYPES = {
    "Open MPI": "pmix",
    "CRAY MPICH": "cray_shasta",
    "Intel": "pmi2",
    "MVAPICH": "pmi2",
    "MPICH": "pmi2",
}


def library_name(version: str) -> str:
    """Name and version of an MPI library, extracted from its full version text."""
    line = version.splitlines()[0].rstrip("\0").partition(",")[0]
    return " ".join(line.replace("MPI VERSION", "").replace("Version", "").replace(":", "").split())


def check_interface(started: LaunchEnvironment, version: str) -> None:
    """Checks, before MPI starts, that the library supports the launcher's interface."""
    is_plain_mpich = version.startswith("MPICH") and "pmix" not in version
    if started.interface == "PMIx" and is_plain_mpich:
        raise InputError(
            f"{_who(started)}, which offers PMIx, but the MPI library, {library_name(version)}, "
            f"was built without it; {_remedy(started, version)}"
        )


def check_world(started: LaunchEnvironment, size: int, version: str) -> None:
    """Checks, after MPI has started, that processes form one job, not many jobs of one process."""
    if size == 1 and started.size > 1:
        offered = f"which offers {started.interface or 'no PMI'}"
        raise InputError(
            f"{_who(started)}, {offered}, but the MPI library, {library_name(version)}, sees each "
            f"of them alone: they would be {started.size} jobs of one rank; "
            f"{_remedy(started, version)}"
        )


def check_threads(are_granted: bool, version: str) -> None:
    """Checks that MPI lets several threads communicate at a time."""
    if not are_granted:
        raise InputError(
            "ranks plan and watch on threads while they execute, which needs MPI_THREAD_MULTIPLE, "
            f"but {library_name(version)} grants less; load a build of it with thread support, or "
            "another MPI library; where a program has started MPI before, let it ask for "
            "MPI_THREAD_MULTIPLE"
        )


def _who(started: LaunchEnvironment) -> str:
    return f"{started.size} processes were started by {started.launcher}"


def _remedy(started: LaunchEnvironment, version: str) -> str:
    own_launcher = f"the mpiexec of {library_name(version)}"
    if started.launcher != "srun":
        return f"start them with {own_launcher}"
    line = version.splitlines()[0]
    known = [kind for name, kind in _SRUN_TYPES.items() if name in line]
    kind = known[0] if known else "TYPE"
    return (
        f"start them with srun --mpi={kind} ('srun --mpi=list' names what this site has), or with "
        f"{own_launcher} inside the allocation"
    )


Environment = MutableMapping[str, str]


def prefer_loopback(started: LaunchEnvironment, environment: Environment) -> None:
    """Makes NCCL and gloo use the loopback interface if the job runs on one host."""
    if started.is_on_one_host:
        environment.setdefault("NCCL_SOCKET_IFNAME", "lo")
        environment.setdefault("GLOO_SOCKET_IFNAME", "lo")


OF_RANKS = Path(__file__).parent / "open_mpi" / "openmpi-mca-params.conf"


def is_own_open_mpi() -> bool:
    """Whether the loaded MPI library is the virtual environment's own, from the extra [local]."""
    library = Path(sys.prefix).resolve() / "lib" / "libmpi.so"
    # Other libraries may be called libmpi.so, too; the second one is part of every Open MPI.
    loaded = Path("/proc/self/maps").read_bytes()
    return os.fsencode(library) in loaded and b"/libopen-pal.so" in loaded


@contextmanager
def mpi_settings(
    started: LaunchEnvironment, environment: Environment, *, is_own: bool
) -> Iterator[None]:
    """Sets variables for the block that starts MPI, and removes them after it.

    Variables that users have set are kept. Variables set here are removed again, as processes that
    this one starts may be ranks of another job. Open MPI does not start without HOME, which
    containers and services may lack. The Open MPI of the virtual environment (`is_own`) is told its
    folder, as it would look in the folder where it was built. It reads this package's settings
    after the user's and the environment's.

    If the job runs on one host, MPI does without the network: otherwise ranks listen for
    connections, with Open MPI on all interfaces. A single process does without shared memory, too:
    without a launcher nothing would remove the segment of 16.8 MB that Open MPI leaves.
    """
    # Unchanged if there is neither HOME nor an entry of the user.
    home = Path(os.sep if (known := os.path.expanduser("~")) == "~" else known)  # noqa: PTH111
    variables = {"HOME": str(home)}
    if is_own:
        etc = Path(sys.prefix) / "etc" / OF_RANKS.name
        files = (home / ".openmpi" / "mca-params.conf", etc, OF_RANKS)
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
