"""MPI, started after checking how this process was started.

Importing this module starts MPI, as importing mpi4py would. But processes that should
form one job and do not are ended here, before anything else is loaded.
"""

import os
import signal
import time
import warnings

import mpi4py

from dynapipe_hpc.data.errors import InputError, print_error
from dynapipe_hpc.job.launch import (
    check_interface,
    check_threads,
    check_world,
    is_own_open_mpi,
    mpi_settings,
    prefer_loopback,
    read_started,
)

__all__ = ["MPI", "STARTED"]

PATIENCE_S, SETTLE_S = 3.0, 0.2

mpi4py.rc.initialize = False
mpi4py.rc.finalize = True
# mpi4py warns of a wrong launcher on every rank; our own message says more, once.
warnings.filterwarnings("ignore", "suspicious MPI execution environment", RuntimeWarning)
try:
    from mpi4py import MPI
except (ImportError, RuntimeError) as error:
    reason = str(error).partition("\n")[0]
    raise InputError(
        f"no MPI library can be loaded ({reason}); load the site's module, name a libmpi.so in "
        "MPI4PY_LIBMPI, or install the extra [local]"
    ) from error

STARTED = read_started(os.environ, len(os.sched_getaffinity(0)))


def _start() -> None:
    prefer_loopback(STARTED, os.environ)
    version = MPI.Get_library_version()
    try:
        if not MPI.Is_initialized():
            check_interface(STARTED, version)
            with mpi_settings(STARTED, os.environ, is_own=is_own_open_mpi()):
                MPI.Init_thread(MPI.THREAD_MULTIPLE)
            # Under srun, Open MPI 5 rarely ends MPI_Init on one rank while another still waits
            # there for a fence and does not know MPI_COMM_WORLD yet. A message would end that rank
            # by a segmentation fault (https://github.com/open-mpi/ompi/issues/12495). MPI_Init
            # itself sends none.
            if STARTED.launcher == "srun" and STARTED.size > 1 and version.startswith("Open MPI"):
                time.sleep(SETTLE_S)
        check_world(STARTED, MPI.COMM_WORLD.Get_size(), version)
        check_threads(MPI.Query_thread() == MPI.THREAD_MULTIPLE, version)
    except InputError as error:
        if STARTED.rank == 0:
            print_error(str(error))
        # Launchers end all processes when one ends. The pause lets the first one print its message,
        # and all of them end with the same exit code.
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        time.sleep(PATIENCE_S)
        raise SystemExit(2) from None


_start()
