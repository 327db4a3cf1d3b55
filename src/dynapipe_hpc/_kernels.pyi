"""The planner's kernels. What they promise stands in cpp/include/dynapipe."""

import numpy as np
import numpy.typing as npt

def split_samples(
    length_of_sample: npt.NDArray[np.int32],
    work_ms: npt.NDArray[np.float64],
    fill_ms: npt.NDArray[np.float64],
    n_replicas: int,
) -> tuple[list[int], float, int]:
    """Cuts samples into consecutive micro-batches; see split_samples.hpp.

    Returns (sizes, objective_ms, n_passes).
    """
