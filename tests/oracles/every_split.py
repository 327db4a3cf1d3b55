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
