"""A sample so long that no plan can be as short as the work of all samples, shared out evenly."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from dynapipe_hpc.data.sample import Sample
from dynapipe_hpc.plan.cluster import Link
from dynapipe_hpc.planner.batch.row_length import preferences_of, row_lengths, tokens_of
from dynapipe_hpc.planner.cost.cost_model import CostModel, Shapes, StageCosts
from dynapipe_hpc.planner.schedule.pipeline import Pipeline
from dynapipe_hpc.planner.schedule.schedule_rule import Pass, PassKind, Schedule
from dynapipe_hpc.planner.schedule.simulate import simulate
from dynapipe_hpc.planner.schedule.update import iteration_ms

MIN_SHARE = 0.05
"""Least part of an iteration's time that an outlier adds."""


@dataclass(frozen=True, slots=True)
class Outlier:
    """An outlier: a sample whose way through the pipeline takes longer than all ranks are busy."""

    sample_id: int
    tokens: int
    chain_ms: float
    busy_ms: float

    @property
    def added_ms(self) -> float:
        """Time by which it exceeds the shortest iteration that ranks with the same work allow."""
        return self.chain_ms - self.busy_ms


def find_outlier(
    pipelines: Sequence[Pipeline], samples: Sequence[Sample], cost: CostModel, link: Link
) -> Outlier | None:
    """The sample with the longest passes, if it adds at least `MIN_SHARE` of the iteration."""
    layouts = sorted({m.layout for pipeline in pipelines for m in pipeline.microbatches})
    longest, costs = _longest(samples, [cost.of_layout(layout) for layout in layouts])
    splits = any((p.schedule.codes % len(PassKind) == PassKind.WEIGHT).any() for p in pipelines)
    kinds = tuple(PassKind) if splits else (PassKind.FORWARD, PassKind.BACKWARD)
    alone = Schedule.from_passes([[Pass(kind, 0) for kind in kinds]] * costs.n_stages)
    timelines = [pipeline.timeline for pipeline in pipelines]
    outlier = Outlier(
        sample_id=longest.sample_id,
        tokens=longest.tokens,
        chain_ms=simulate(alone, costs, link, cost.static_bytes).makespan_ms,
        busy_ms=float(np.mean([timeline.busy_ms for timeline in timelines])),
    )
    least_ms = MIN_SHARE * iteration_ms(timelines, cost)
    # Infinite where no sample was measured alone: the plan has longer rows only.
    return outlier if least_ms <= outlier.added_ms < np.inf else None


def _longest(
    samples: Sequence[Sample], of_layouts: Sequence[CostModel]
) -> tuple[Sample, StageCosts]:
    row_tokens, target_tokens = row_lengths(samples, of_layouts[0].is_encoder_decoder)
    n_rows = np.ones(len(samples))
    if preferences := preferences_of(samples):
        tokens = tokens_of(samples, "tokens")
        n_rows = np.minimum(tokens * (tokens / preferences.pairs), preferences.n_documents)
    shapes = Shapes.padded(n_rows, row_tokens / n_rows, target_tokens)
    by_mode = [cost.stage_costs(shapes, r) for cost in of_layouts for r in cost.recompute_modes]
    works_ms = np.stack([costs.work_ms.sum(axis=1) for costs in by_mode])
    fastest_ms = works_ms.min(axis=0)
    index = int(np.where(np.isfinite(fastest_ms), fastest_ms, 0.0).argmax())
    mode = int(works_ms[:, index].argmin())
    return samples[index], by_mode[mode].take(np.array([index]))
