"""The best split, found by trying every one."""

import math
from collections.abc import Iterator, Sequence

from dynapipe_hpc.planner.cost.cost_model import FloatArray


def every_cut(n: int) -> Iterator[tuple[int, ...]]:
    """All ways to write n as sizes of consecutive groups; 2 ** (n - 1) of them."""
    if n == 0:
        yield ()
    for size in range(1, n + 1):
        for rest in every_cut(n - size):
            yield (size, *rest)


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
    return slowest_ms + sum(float(work_ms[e]) for e in entries) / n_replicas


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
