"""A schedule as an array of numbers, for the kernels."""

import numpy as np
import numpy.typing as npt

from dynapipe_hpc.planner.schedule.schedule_rule import Pass, PassKind, Schedule

CodeArray = npt.NDArray[np.int32]


def encode_passes(schedule: Schedule) -> CodeArray:
    """The passes of every stage as 3 * microbatch + kind, shape (n_stages, n_passes)."""
    return np.array([[3 * p.microbatch + p.kind for p in row] for row in schedule.passes], np.int32)


def decode_passes(codes: CodeArray) -> Schedule:
    """The schedule of which `encode_passes` makes `codes`."""
    n_microbatches = int(codes.max(initial=-1)) // len(PassKind) + 1
    passes = [Pass(kind, i) for i in range(n_microbatches) for kind in PassKind]
    return Schedule(tuple(tuple(passes[code] for code in row) for row in codes.tolist()))
