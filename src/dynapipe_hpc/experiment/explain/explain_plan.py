"""Explanation of a plan: its rivals, the gain over 1F1B, and the exact splits."""

from collections.abc import Iterator, Sequence

import numpy as np

from dynapipe_hpc._kernels import FrontPoint
from dynapipe_hpc.data.sample import Sample
from dynapipe_hpc.plan.cluster import Cluster
from dynapipe_hpc.planner.batch.order import orders
from dynapipe_hpc.planner.batch.split import split_front
from dynapipe_hpc.planner.batch.windows.price_windows import price_windows
from dynapipe_hpc.planner.choose.choice import Candidate, Choice, Infeasible
from dynapipe_hpc.planner.cost.cost_model import CostModel
from dynapipe_hpc.planner.from_config import name_of
from dynapipe_hpc.planner.schedule.one_f_one_b import one_f_one_b
from dynapipe_hpc.planner.schedule.outlier import Outlier
from dynapipe_hpc.planner.schedule.pipeline import schedule_pipeline
from dynapipe_hpc.planner.schedule.schedule_rule import InfeasibleScheduleError


def explain_choice(choice: Choice) -> Iterator[str]:
    """The plans that a search began with, and a line per candidate; a star marks the best."""
    for order, plans in choice.constructed.items():
        yield f"constructed, samples {order}: rules | makespan"
        yield from (f"  {plan} | {plan.makespan_ms:10,.1f} ms" for plan in plans)
    width = max(len(each.way) for each in choice.tried)
    yield "candidates: way to micro-batches | makespan | highest peak | schedule of each replica"
    for each in choice.tried:
        mark = "*" if each is choice.best else " "
        yield f"{mark} {each.way:<{width}} | {_outcome(each)}"


def _outcome(candidate: Candidate | Infeasible) -> str:
    if isinstance(candidate, Infeasible):
        return f"infeasible: {candidate.reason}"
    peak_bytes = max(pipeline.timeline.peak_bytes.max() for pipeline in candidate.pipelines)
    rules = ", ".join(name_of(pipeline.rule) for pipeline in candidate.pipelines)
    return f"{candidate.makespan_ms:10,.1f} ms | {peak_bytes / 1e6:10,.1f} MB | {rules}"


def explain_gain(choice: Choice, cost: CostModel, cluster: Cluster) -> str:
    """Makespan of 1F1B for the chosen micro-batches in the chosen order, compared with the plan."""
    try:
        plain = [
            schedule_pipeline(pipeline.microbatches, cost, cluster, [one_f_one_b])
            for pipeline in choice.pipelines
        ]
    except InfeasibleScheduleError as error:
        return f"the same micro-batches in 1F1B: infeasible: {error}"
    plain_ms = max(pipeline.timeline.makespan_ms for pipeline in plain)
    chosen_ms = choice.best.makespan_ms
    return (
        f"the same micro-batches in 1F1B: {plain_ms:,.1f} ms, "
        f"{100 * (plain_ms / chosen_ms - 1):z.1f} % more than the {chosen_ms:,.1f} ms of the plan"
    )


def explain_outlier(outlier: Outlier | None) -> str:
    """The sample that alone makes the iteration longer, with its times."""
    if outlier is None:
        return "outliers: no sample alone makes the iteration longer"
    return (
        f"outliers: sample {outlier.sample_id} ({outlier.tokens:,} tokens) adds "
        f"{outlier.added_ms:,.1f} ms: its passes alone take {outlier.chain_ms:,.1f} ms, while the "
        f"average rank is busy for {outlier.busy_ms:,.1f} ms"
    )


N_SHOWN = 8
"""Number of points of the front that are shown, ends included, besides the best."""


def explain_split(samples: Sequence[Sample], cost: CostModel, cluster: Cluster) -> Iterator[str]:
    """A header, and a line for some points of the Pareto front; a star marks the best.

    The best point is the choice of the batch rule `dynamic` with all of the memory. A search uses
    prices of memory and simulation instead; the front is for comparison with its plan.
    """
    name, ordered = next(iter(orders(samples, cost.is_encoder_decoder).items()))
    front = split_front(price_windows(ordered, cost, cluster))
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
