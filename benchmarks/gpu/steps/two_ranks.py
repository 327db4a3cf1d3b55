"""Two ranks with NCCL on one device, which NCCL allows from 2.30 on; see `two_ranks_program`."""

import os
import subprocess
import sys
import time
from pathlib import Path

from gpu.device import find_device, nccl_version
from gpu.finding import lacks, note

MPIEXEC = Path(sys.executable).parent / "mpiexec"
FIRST_VERSION = (2, 30)
SETTINGS = {"NCCL_MULTI_RANK_GPU_ENABLE": "1", "NCCL_MAX_CTAS": "4"}
MAX_S = 30.0


def main() -> None:
    device = find_device()
    if device.type == "cuda" and (version := nccl_version()) < FIRST_VERSION:
        lacks(f"NCCL 2.30 (this is {'.'.join(map(str, version))}), which lets ranks share a device")
    code = ranks("compare")
    note("two ranks end with", code, "0", code == 0)
    started_s = time.monotonic()
    code = ranks("kill")
    seconds = time.monotonic() - started_s
    note("a killed rank ends the job with", code, "not 0", code != 0)
    note("after s, start included", seconds, f"< {MAX_S:.0f}", seconds < MAX_S)


def ranks(what: str) -> int:
    """The exit code of the program on two ranks."""
    program = [sys.executable, "-m", "mpi4py", "-m", "gpu.two_ranks_program", what]
    command = [str(MPIEXEC), "-n", "2", *program]
    return subprocess.run(command, env=os.environ | SETTINGS, check=False).returncode


if __name__ == "__main__":
    main()
