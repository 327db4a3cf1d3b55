"""Detection of MPI libraries, and launchers, that a job cannot use."""

from dynapipe_hpc.data.errors import InputError
from dynapipe_hpc.job.launch_environment import LaunchEnvironment

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
    """Checks, before MPI starts, that the library supports the launcher's interface.

    Args:
        started: How this process was started.
        version: Version text of the MPI library.

    Raises:
        InputError: MPICH was built without PMIx, and the launcher offers nothing else.
    """
    is_plain_mpich = version.startswith("MPICH") and "pmix" not in version
    if started.interface == "PMIx" and is_plain_mpich:
        raise InputError(
            f"{_who(started)}, which offers PMIx, but the MPI library, {library_name(version)}, "
            f"was built without it; {_remedy(started, version)}"
        )


def check_world(started: LaunchEnvironment, size: int, version: str) -> None:
    """Checks, after MPI has started, that the processes form one job, not many of one process.

    Args:
        started: How this process was started.
        size: Number of processes according to MPI.
        version: Version text of the MPI library.

    Raises:
        InputError: Several processes were started, and this one is alone.
    """
    if size == 1 and started.size > 1:
        offered = f"which offers {started.interface or 'no PMI'}"
        raise InputError(
            f"{_who(started)}, {offered}, but the MPI library, {library_name(version)}, sees each "
            f"of them alone: they would be {started.size} jobs of one rank; "
            f"{_remedy(started, version)}"
        )


def check_threads(level: str, version: str) -> None:
    """Checks, after MPI has started, that several threads may communicate at the same time.

    Args:
        level: Thread level that MPI grants, such as "serialized".
        version: Version text of the MPI library.

    Raises:
        InputError: The level is below "multiple".
    """
    if level != "multiple":
        raise InputError(
            "ranks plan and watch on threads beside execution, which needs MPI_THREAD_MULTIPLE, "
            f"but {library_name(version)} grants MPI_THREAD_{level.upper()}; load a build of it "
            "with thread support, or another MPI library; where a program has started MPI before, "
            "let it ask for MPI_THREAD_MULTIPLE"
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
