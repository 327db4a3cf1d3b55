"""Orders of points in a plane in which neighbours are near on both axes."""

import numpy as np

from dynapipe_hpc import _kernels
from dynapipe_hpc.planner.cost.cost_model import IntArray

TOUR_WORK = 1_000_000  # approximate number of pairs of points that a round of improvement compares


def tour(x: IntArray, y: IntArray) -> IntArray:
    """A short path through all points, beginning at the greatest.

    Source:
        Jiang et al., "DynaPipe", EuroSys 2024, doi:10.1145/3627703.3629585, orders samples of an
        encoder-decoder model by a travelling salesman's tour.
    """
    points, of_point = np.unique(np.stack([x, y], axis=1), axis=0, return_inverse=True)
    xs, ys = np.ascontiguousarray(points.T)
    place = np.argsort(_kernels.short_tour(xs, ys, max(50, TOUR_WORK // len(points))))
    return np.argsort(place[of_point.reshape(-1)], kind="stable")
