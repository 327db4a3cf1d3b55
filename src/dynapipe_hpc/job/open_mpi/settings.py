"""Settings that Open MPI starts with: those of the environment's own, and of a process alone."""

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

OF_RANKS = Path(__file__).with_name("openmpi-mca-params.conf")
OF_LAUNCHER = Path(__file__).with_name("prte-mca-params.conf")
_ROOT = ("OMPI_ALLOW_RUN_AS_ROOT", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM")


def is_own_open_mpi() -> bool:
    """Whether the MPI library in memory is the environment's own, from the extra [local]."""
    return _is_open_mpi() and _is_loaded(str(Path(sys.prefix).resolve() / "lib" / "libmpi.so"))


def _is_open_mpi() -> bool:
    # Other libraries may be called libmpi.so, too; this one is part of every Open MPI.
    return _is_loaded("/libopen-pal.so")


def _is_loaded(library: str) -> bool:
    return os.fsencode(library) in Path("/proc/self/maps").read_bytes()


def has_settings(file: Path) -> bool:
    """Whether a file of settings sets anything: that of a new Open MPI holds comments alone."""
    lines = file.read_text().splitlines() if file.is_file() else []
    return any(line.strip() and not line.lstrip().startswith("#") for line in lines)


def permission_for_root() -> str:
    """What root has to type before Open MPI starts ranks, to be added to an advice.

    Empty for other users, with another MPI library in memory, and where it has been typed. The
    launcher refuses before any rank of ours is started, so nobody else can say so in a line.
    """
    if os.geteuid() or not _is_open_mpi() or all(name in os.environ for name in _ROOT):
        return ""
    return f"; as root, first: export {' '.join(f'{name}=1' for name in _ROOT)}"


@contextmanager
def open_mpi_settings(*, is_own: bool) -> Iterator[None]:
    """Environment variables for the block that starts MPI; the environment is restored after it.

    An Open MPI of the environment's own is told where it is, as it looks where it was built, and
    reads the settings of this package after those of the user and of the environment.

    Args:
        is_own: Whether the MPI library is the environment's own Open MPI.
    """
    wanted: dict[str, str] = {}
    if is_own:
        etc = Path(sys.prefix) / "etc" / OF_RANKS.name
        files = (Path.home() / ".openmpi" / "mca-params.conf", etc, OF_RANKS)
        wanted["OPAL_PREFIX"] = sys.prefix
        wanted["OMPI_MCA_mca_base_param_files"] = ",".join(map(str, files))
    added = wanted.keys() - os.environ.keys()
    os.environ.update({name: wanted[name] for name in added})
    try:
        yield
    finally:
        for name in added:  # processes that this one starts may be ranks of another job
            del os.environ[name]
