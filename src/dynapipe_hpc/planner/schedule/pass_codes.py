"""A schedule as an array of numbers, for the kernels."""

import numpy as np
import numpy.typing as npt

from dynapipe_hpc.planner.schedule.schedule_rule import Direction, Pass, Schedule

CodeArray = npt.NDArray[np.int32]


def encode_passes(schedule: Schedule) -> CodeArray:
    """The passes of every stage as 2 * microbatch + direction, shape (n_stages, n_passes)."""
    return np.array(
        [[2 * p.microbatch + p.direction for p in row] for row in schedule.passes], np.int32
    )


def decode_passes(codes: CodeArray) -> Schedule:
    """The schedule of which `encode_passes` makes `codes`."""
    n_microbatches = codes.shape[1] // 2
    passes = [Pass(d, i) for i in range(n_microbatches) for d in Direction]
    return Schedule(tuple(tuple(passes[code] for code in row) for row in codes.tolist()))
