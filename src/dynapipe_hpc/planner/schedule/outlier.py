"""A sample that alone lengthens an iteration, and by how much."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from dynapipe_hpc.data.sample import Sample
from dynapipe_hpc.plan.cluster import Link
from dynapipe_hpc.planner.cost.cost_model import CostModel
from dynapipe_hpc.planner.schedule.pipeline import Pipeline
from dynapipe_hpc.planner.schedule.schedule_rule import PassKind, Schedule
from dynapipe_hpc.planner.schedule.simulate import simulate
from dynapipe_hpc.planner.schedule.timeline import Timeline
from dynapipe_hpc.planner.schedule.update import iteration_ms

LEAST_SHARE = 0.05
"""Least part of an iteration's time that an outlier adds."""


@dataclass(frozen=True, slots=True)
class Outlier:
    """An outlier: a sample alone in its micro-batch, for which the other ranks wait.

    Attributes:
        sample_id: Index of the sample.
        tokens: Number of its tokens.
        with_ms: Predicted time of the iteration.
        without_ms: Predicted time of the same plan without the sample's micro-batch.
        work_ms: Time of its passes on all stages.
        n_ranks: Number of stages times replicas.
    """

    sample_id: int
    tokens: int
    with_ms: float
    without_ms: float
    work_ms: float
    n_ranks: int

    @property
    def share_ms(self) -> float:
        """Time that its passes would take if all ranks shared them evenly."""
        return self.work_ms / self.n_ranks

    @property
    def added_ms(self) -> float:
        """Time that it adds to the iteration beyond its share of the work."""
        return self.with_ms - self.without_ms - self.share_ms


def find_outlier(
    pipelines: Sequence[Pipeline], samples: Sequence[Sample], cost: CostModel, link: Link
) -> Outlier | None:
    """Finds the sample that adds at least `LEAST_SHARE` of the iteration's time, if there is one.

    Only the micro-batch with the longest passes is considered. The plan without it keeps the order
    of all other passes, and is simulated again.

    Args:
        pipelines: Pipelines of an iteration, one per replica.
        samples: Global batch.
        cost: Cost model that the pipelines were scheduled with.
        link: Link between neighbouring stages.
    """
    works_ms = [pipeline.costs.work_ms.sum(axis=1) for pipeline in pipelines]
    replica = int(np.argmax([work_ms.max() for work_ms in works_ms]))
    index = int(works_ms[replica].argmax())
    ids = pipelines[replica].microbatches[index].sample_ids
    if len(ids) > 1 or len(samples) == 1:
        return None
    timelines = [pipeline.timeline for pipeline in pipelines]
    remaining = _without(pipelines[replica], index, cost, link)
    others = [*timelines[:replica], *remaining, *timelines[replica + 1 :]]
    (sample,) = (sample for sample in samples if sample.sample_id == ids[0])
    outlier = Outlier(
        sample_id=sample.sample_id,
        tokens=sample.tokens,
        with_ms=iteration_ms(timelines, cost),
        without_ms=iteration_ms(others, cost),
        work_ms=float(works_ms[replica][index]),
        n_ranks=len(pipelines) * pipelines[replica].costs.n_stages,
    )
    return outlier if outlier.added_ms >= LEAST_SHARE * outlier.with_ms else None


def _without(pipeline: Pipeline, index: int, cost: CostModel, link: Link) -> list[Timeline]:
    """The timeline without a micro-batch; none if there is no other."""
    if len(pipeline.microbatches) == 1:
        return []
    codes, n_kinds = pipeline.schedule.codes, len(PassKind)
    kept = np.array([row[row // n_kinds != index] for row in codes], codes.dtype)
    kept -= n_kinds * (kept // n_kinds > index).astype(codes.dtype)
    costs = pipeline.costs.take(np.delete(np.arange(len(pipeline.microbatches)), index))
    return [simulate(Schedule(kept), costs, link, cost.static_bytes)]
