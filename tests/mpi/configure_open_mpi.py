"""Fits the Open MPI of this virtual environment to a small machine without a network.

Only the settings files inside the environment change. Its own values can be overridden by
OMPI_MCA_* and PRTE_MCA_* variables and on the command line of mpiexec. Without Open MPI in
the environment there is nothing to do.
"""

import sys
from pathlib import Path

# Waiting ranks give the core to working ones. UCX needs a fabric: without one it warns of the
# devices that it does not find, and its one-sided component fails. libfabric sleeps for a second
# when it looks for one, in every rank.
_OPEN_MPI = """\
mpi_yield_when_idle = 1
btl = ^ofi
osc = ^ucx
pml = ob1
"""

# More ranks than cores, and threads of a rank on any core.
_LAUNCHER = """\
rmaps_default_mapping_policy = slot:oversubscribe
hwloc_default_binding_policy = none
"""


def configure(prefix: Path) -> None:
    """Writes the settings under the environment's `etc/`."""
    if (prefix / "bin" / "prterun").exists():
        (prefix / "etc" / "openmpi-mca-params.conf").write_text(_OPEN_MPI)
        (prefix / "etc" / "prte-mca-params.conf").write_text(_LAUNCHER)


if __name__ == "__main__":
    configure(Path(sys.prefix))
