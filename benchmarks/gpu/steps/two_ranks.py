"""Two ranks with NCCL on one device, which NCCL allows from 2.30 on; see `two_ranks_program`."""

import time

from gpu.device import find_device, nccl_version
from gpu.finding import lacks, note
from gpu.trained import on_ranks

FIRST_VERSION = (2, 30)
SETTINGS = {"NCCL_MULTI_RANK_GPU_ENABLE": "1", "NCCL_MAX_CTAS": "4"}
PROGRAM = ("-m", "mpi4py", "-m", "gpu.two_ranks_program")
MAX_S = 30.0


def main() -> None:
    device = find_device()
    if device.type == "cuda" and (version := nccl_version()) < FIRST_VERSION:
        lacks(f"NCCL 2.30 (this is {'.'.join(map(str, version))}), which lets ranks share a device")
    code = on_ranks(2, *PROGRAM, "compare", settings=SETTINGS)
    note("two ranks end with", code, "0", code == 0)
    started_s = time.monotonic()
    code = on_ranks(2, *PROGRAM, "kill", settings=SETTINGS)
    seconds = time.monotonic() - started_s
    note("a killed rank ends the job with", code, "not 0", code != 0)
    note("after s, start included", seconds, f"< {MAX_S:.0f}", seconds < MAX_S)


if __name__ == "__main__":
    main()
