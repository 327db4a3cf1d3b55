"""The best split, found by trying every one."""

import math
from collections.abc import Iterable, Iterator, Sequence
from functools import reduce
from operator import add

from dynapipe_hpc.planner.cost.cost_model import FloatArray


def every_cut(n: int) -> Iterator[tuple[int, ...]]:
    """All ways to write n as sizes of consecutive groups; 2 ** (n - 1) of them."""
    if n == 0:
        yield ()
    for size in range(1, n + 1):
        for rest in every_cut(n - size):
            yield (size, *rest)


def added_up(times_ms: Iterable[float]) -> float:
    """The sum, rounded after every addition; Python's own is compensated from 3.12 on."""
    return reduce(add, times_ms, 0.0)


def fill_and_work_ms(
    sizes: Sequence[int], length_of_sample: Sequence[int], work_ms: FloatArray, fill_ms: FloatArray
) -> tuple[float, float]:
    """Largest fill and sum of work, added up from the last group; infinite if forbidden."""
    if any(size > work_ms.shape[1] for size in sizes):
        return math.inf, math.inf
    firsts = [sum(sizes[:i]) for i in range(len(sizes))]
    entries = [(length_of_sample[f], n - 1) for f, n in zip(firsts, sizes, strict=True)]
    fill = max(float(fill_ms[e]) for e in entries)
    return fill, added_up(float(work_ms[e]) for e in reversed(entries))


def pareto_front(
    length_of_sample: Sequence[int], work_ms: FloatArray, fill_ms: FloatArray
) -> list[tuple[float, float]]:
    """Fill and work of all splits that no other beats in both, most fill first."""
    front: list[tuple[float, float]] = []
    cuts = every_cut(len(length_of_sample))
    points = {fill_and_work_ms(cut, length_of_sample, work_ms, fill_ms) for cut in cuts}
    for fill, work in sorted(point for point in points if max(point) < math.inf):
        if not front or work < front[-1][1]:
            front.append((fill, work))
    return front[::-1]


def objective_ms(
    sizes: Sequence[int],
    length_of_sample: Sequence[int],
    work_ms: FloatArray,
    fill_ms: FloatArray,
    n_replicas: int,
) -> float:
    """Largest fill plus each replica's share of the work; infinite if a size is forbidden."""
    max_samples = work_ms.shape[1]
    if any(size > max_samples for size in sizes):
        return math.inf
    firsts = [sum(sizes[:i]) for i in range(len(sizes))]
    entries = [(length_of_sample[f], n - 1) for f, n in zip(firsts, sizes, strict=True)]
    slowest_ms = max(float(fill_ms[e]) for e in entries)
    return slowest_ms + added_up(float(work_ms[e]) for e in entries) / n_replicas


def least_objective_ms(
    length_of_sample: Sequence[int], work_ms: FloatArray, fill_ms: FloatArray, n_replicas: int
) -> float:
    """The least objective over all splits; infinite if none is allowed."""
    return min(
        objective_ms(sizes, length_of_sample, work_ms, fill_ms, n_replicas)
        for sizes in every_cut(len(length_of_sample))
    )


def least_objective_by_limits_ms(
    length_of_sample: Sequence[int], work_ms: FloatArray, fill_ms: FloatArray, n_replicas: int
) -> float:
    """The same, by the least work under every possible limit on the fill: for longer lists."""
    return min(
        limit + _least_work_ms(length_of_sample, work_ms, fill_ms, limit) / n_replicas
        for limit in {float(entry) for entry in fill_ms.flat}
    )


def _least_work_ms(
    length_of_sample: Sequence[int], work_ms: FloatArray, fill_ms: FloatArray, limit_ms: float
) -> float:
    rest_ms = [0.0]  # of the last samples: none, the last, the last two ...
    for length in reversed(length_of_sample):
        sizes = range(min(work_ms.shape[1], len(rest_ms)))
        allowed = [k for k in sizes if fill_ms[length, k] <= limit_ms]
        rest_ms.append(
            min((work_ms[length, k] + rest_ms[-1 - k] for k in allowed), default=math.inf)
        )
    return rest_ms[-1]
