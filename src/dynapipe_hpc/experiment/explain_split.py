"""What the exact split trades: fill against work."""

from collections.abc import Iterator, Sequence

import numpy as np

from dynapipe_hpc.data.sample import Sample
from dynapipe_hpc.plan.cluster import Cluster
from dynapipe_hpc.planner.batch.candidates import candidates
from dynapipe_hpc.planner.batch.order import orders
from dynapipe_hpc.planner.batch.split import FrontPoint, split_front
from dynapipe_hpc.planner.cost.cost_model import CostModel

N_SHOWN = 8
"""Points of the front that are shown, ends included, besides the best one."""


def explain_split(samples: Sequence[Sample], cost: CostModel, cluster: Cluster) -> Iterator[str]:
    """A header, and a line for some points of the Pareto front, a star before the best.

    The best is what the batch rule `dynamic` takes, with all of the memory. A search cuts at
    prices of memory instead and simulates; the front is there to compare its plan with.
    """
    name, ordered = next(iter(orders(samples, cost.is_encoder_decoder).items()))
    front = split_front(candidates(ordered, cost, cluster))
    times_ms = [point.fill_ms + point.work_ms / cluster.n_replicas for point in front]
    best = int(np.argmin(times_ms))
    evenly = np.linspace(0, len(front) - 1, N_SHOWN).astype(int).tolist()
    yield (
        f"exact splits, samples {name}, {len(front)} on the front of fill and work: "
        "slowest fill | sum of work | fill + work per replica | micro-batches"
    )
    for i in sorted({*evenly, best}):
        yield f"{'*' if i == best else ' '} {_line(front[i], times_ms[i])}"


def _line(point: FrontPoint, time_ms: float) -> str:
    return (
        f"{point.fill_ms:10,.1f} ms | {point.work_ms:10,.1f} ms | {time_ms:10,.1f} ms | "
        f"{len(point.sizes)}"
    )
