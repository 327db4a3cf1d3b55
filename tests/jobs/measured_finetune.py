"""Tunes as on GPUs, which processors play: costs are measured first, shortly.

mpiexec -n N python -m tests.jobs.measured_finetune ARGUMENTS
"""

import sys
from unittest.mock import patch

from dynapipe_hpc.cli.main import main
from dynapipe_hpc.experiment.profile import profile
from dynapipe_hpc.experiment.rank import devices

if __name__ == "__main__":
    with (
        patch.object(profile, "REPETITION_S", 0.02),
        patch.object(devices, "memory_of_ranks", lambda _: (True, 10**9)),
    ):
        sys.exit(main(["finetune", *sys.argv[1:]]))
