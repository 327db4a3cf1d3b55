import re

import pytest

from dynapipe_hpc.data.errors import InputError
from dynapipe_hpc.job.launch import LaunchEnvironment, check_interface, check_threads, check_world

OPEN_MPI = "Open MPI v5.0.11, package: Open MPI, ident: 5.0.11, Sep 16, 2026\0"
MPICH = "MPICH Version:      5.0.2\nMPICH Release date: x\nMPICH configure:    --with-pm=hydra\n"
MPICH_WITH_PMIX = MPICH.replace("--with-pm=hydra", "--with-pmix=/usr")
CRAY = "MPI VERSION    : CRAY MPICH version 8.1.25.17 (ANL base 3.4a2)\nMPI BUILD INFO : x\n"
INTEL = "Intel(R) MPI Library 2021.9 for Linux* OS\n"


def started(launcher: str | None, interface: str | None, size: int = 4) -> LaunchEnvironment:
    return LaunchEnvironment(launcher, interface, 0, size, 0, False, 1)


@pytest.mark.parametrize(
    ("version", "kind"),
    [(OPEN_MPI, "pmix"), (MPICH, "pmi2"), (INTEL, "pmi2"), (CRAY, "cray_shasta"), ("?", "TYPE")],
)
def test_processes_alone_under_srun_are_told_which_pmi_to_use(version: str, kind: str) -> None:
    message = f"4 processes were started by srun, which offers no PMI.*--mpi={kind}.*mpiexec of"
    with pytest.raises(InputError, match=message):
        check_world(started("srun", None), 1, version)


def test_processes_of_another_mpiexec_are_told_to_use_their_own() -> None:
    message = re.escape(
        "4 processes were started by mpiexec of MPICH, which offers PMI, but the MPI library, "
        "Open MPI v5.0.11, sees each of them alone: they would be 4 jobs of one rank; start them "
        "with the mpiexec of Open MPI v5.0.11"
    )
    with pytest.raises(InputError, match=message):
        check_world(started("mpiexec of MPICH", "PMI"), 1, OPEN_MPI)


@pytest.mark.parametrize(("launched", "size"), [(1, 1), (4, 4), (1, 4)])
def test_ranks_that_know_each_other_go_on(launched: int, size: int) -> None:
    check_world(started("srun", "PMIx", launched), size, OPEN_MPI)


@pytest.mark.parametrize("launcher", ["srun", "mpiexec of Open MPI"])
def test_pmix_is_refused_where_mpich_lacks_it(launcher: str) -> None:
    message = "offers PMIx, but the MPI library, MPICH 5.0.2, was built without it; start them with"
    with pytest.raises(InputError, match=message):
        check_interface(started(launcher, "PMIx"), MPICH)


@pytest.mark.parametrize(
    ("interface", "version"),
    [("PMIx", OPEN_MPI), ("PMIx", MPICH_WITH_PMIX), ("PMIx", CRAY), ("PMI", MPICH), (None, MPICH)],
)
def test_other_interfaces_are_left_to_the_library(interface: str | None, version: str) -> None:
    check_interface(started("srun", interface), version)


def test_an_mpi_with_too_little_for_threads_is_refused() -> None:
    check_threads(True, OPEN_MPI)
    told = r"needs MPI_THREAD_MULTIPLE, but Open MPI v5\.\S+ grants less; load"
    with pytest.raises(InputError, match=told):
        check_threads(False, OPEN_MPI)
