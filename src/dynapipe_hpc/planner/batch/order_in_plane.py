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


def banded(x: IntArray, y: IntArray) -> IntArray:
    """Bands of equally many points by x, traversed by y in alternating direction."""
    n_bands = max(1, round(np.sqrt(len(x)) / 2))
    by_x = np.lexsort((-y, -x))
    band = np.empty_like(x)
    band[by_x] = np.arange(len(x)) * n_bands // len(x)
    return np.lexsort((np.where(band % 2 == 0, -y, y), band))


def hilbert(x: IntArray, y: IntArray) -> IntArray:
    """The order along a Hilbert curve, from its far end.

    Source:
        Hilbert, "Ueber die stetige Abbildung einer Linie auf ein Flaechenstueck", 1891.
    """
    n_bits = int(max(x.max(), y.max())).bit_length()
    x, y, along = x.copy(), y.copy(), np.zeros_like(x)
    for bit in reversed(range(n_bits)):
        side = 1 << bit
        right, upper = (x & side) > 0, (y & side) > 0
        along += side * side * ((3 * right) ^ upper)
        x, y = x & (side - 1), y & (side - 1)
        flipped = ~upper & right
        x, y = np.where(flipped, side - 1 - x, x), np.where(flipped, side - 1 - y, y)
        x, y = np.where(upper, x, y), np.where(upper, y, x)
    return np.argsort(-along, kind="stable")
