"""All schedules of few micro-batches on few stages."""

from collections.abc import Iterator
from functools import cache
from itertools import product

import numpy as np

from dynapipe_hpc import _kernels
from dynapipe_hpc.plan.cluster import Link
from dynapipe_hpc.planner.cost.cost_model import FloatArray, StageCosts
from dynapipe_hpc.planner.schedule.schedule_rule import CodeArray, kernel_link


def least_makespan_ms(
    costs: StageCosts,
    link: Link,
    *,
    split: bool,
    limit_bytes: FloatArray | None = None,
    reduce_ms: float | FloatArray = 0.0,
) -> float:
    """Of all schedules that keep within memory; infinite if there is none.

    A stage ends `reduce_ms` after its last pass, when its gradients are reduced. Slices of a sample
    go forward in their order, and back in the reverse.
    """
    orders = every_order(costs.n_microbatches, split=split)
    rows = [
        [order for order in orders.tolist() if _may_be(order, costs, stage, limit_bytes)]
        for stage in range(costs.n_stages)
    ]
    static_bytes, same_link = np.zeros(costs.n_stages), kernel_link(link)
    timelines = (
        _kernels.simulate(np.array(schedule, np.int32), costs.checked, static_bytes, same_link)
        for schedule in product(*rows)
    )
    ends_ms = (
        (timeline.end_ms[:, -1] + reduce_ms).max()
        for timeline in timelines
        if timeline.makespan_ms < np.inf
    )
    return float(min(ends_ms, default=np.inf))


@cache
def every_order(n_microbatches: int, *, split: bool) -> CodeArray:
    """Pass codes of all orders of one stage, F before B before W; shape (n_orders, n_passes)."""
    n_kinds = 3 if split else 2
    return np.array(list(_orders((0,) * n_microbatches, n_kinds)), np.int32)


def _orders(done: tuple[int, ...], n_kinds: int) -> Iterator[list[int]]:
    """Orders that may follow when so many passes of each micro-batch are done."""
    if all(n == n_kinds for n in done):
        yield []
    for i, n in enumerate(done):
        if n < n_kinds:
            for rest in _orders((*done[:i], n + 1, *done[i + 1 :]), n_kinds):
                yield [3 * i + n, *rest]


def _may_be(
    order: list[int], costs: StageCosts, stage: int, limit_bytes: FloatArray | None
) -> bool:
    if costs.later_slices is not None:
        place = {code: i for i, code in enumerate(order)}
        for i in np.flatnonzero(costs.later_slices).tolist():
            if place[3 * i] > place[3 * i + 3] or place[3 * i + 1] < place[3 * i + 4]:
                return False
    if limit_bytes is None:
        return True
    last, kept = max(code % 3 for code in order), 0.0
    for code in order:
        i, kind = divmod(code, 3)
        forward = costs.forward_transient_bytes[i, stage]
        backward = costs.backward_transient_bytes[i, stage]
        kept += costs.stored_bytes[i, stage] if kind == 0 else 0.0
        if kept + (forward if kind == 0 else backward) > limit_bytes[stage]:
            return False
        kept -= costs.stored_bytes[i, stage] if kind == last else 0.0
    return True
