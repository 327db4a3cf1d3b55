"""Processes that were started by means that their MPI library does not know."""

from dynapipe_hpc.data.errors import InputError
from dynapipe_hpc.job.started import Started

# How srun starts processes of each library; in what a library says of itself, the first counts.
_SRUN_TYPES = {
    "Open MPI": "pmix",
    "CRAY MPICH": "cray_shasta",
    "Intel": "pmi2",
    "MVAPICH": "pmi2",
    "MPICH": "pmi2",
}


def library_name(version: str) -> str:
    """The name and version of an MPI library, from all that it says of itself."""
    line = version.splitlines()[0].rstrip("\0").partition(",")[0]
    return " ".join(line.replace("MPI VERSION", "").replace("Version", "").replace(":", "").split())


def check_interface(started: Started, version: str) -> None:
    """Refuses what the library would end with an error of its own; before MPI starts.

    Args:
        started: How this process was started.
        version: What the MPI library says of itself.

    Raises:
        InputError: MPICH was built without PMIx, and nothing else is offered.
    """
    is_plain_mpich = version.startswith("MPICH") and "pmix" not in version
    if started.interface == "PMIx" and is_plain_mpich:
        raise InputError(
            f"{_who(started)}, which offers PMIx, but the MPI library, {library_name(version)}, "
            f"was built without it; {_way_out(started, version)}"
        )


def check_world(started: Started, size: int, version: str) -> None:
    """Refuses to be one of many jobs of one process; after MPI has started.

    Args:
        started: How this process was started.
        size: Processes that MPI counts.
        version: What the MPI library says of itself.

    Raises:
        InputError: Several processes were started, and this one is alone.
    """
    if size == 1 and started.size > 1:
        offered = f"which offers {started.interface or 'no PMI'}"
        raise InputError(
            f"{_who(started)}, {offered}, but for the MPI library, {library_name(version)}, each "
            f"of them is alone: they would be {started.size} jobs of one rank; "
            f"{_way_out(started, version)}"
        )


def _who(started: Started) -> str:
    return f"{started.size} processes were started by {started.launcher}"


def _way_out(started: Started, version: str) -> str:
    own = f"the mpiexec of {library_name(version)}"
    if started.launcher != "srun":
        return f"start them with {own}"
    line = version.splitlines()[0]
    known = [kind for name, kind in _SRUN_TYPES.items() if name in line]
    kind = known[0] if known else "TYPE"
    return (
        f"start them with srun --mpi={kind} ('srun --mpi=list' names what this site has), or with "
        f"{own} inside the allocation"
    )
