"""Explanation of a plan: its rivals, and the gain over 1F1B."""

from collections.abc import Iterator

from dynapipe_hpc.plan.cluster import Cluster
from dynapipe_hpc.planner.choose.choice import Candidate, Choice, Infeasible
from dynapipe_hpc.planner.cost.cost_model import CostModel
from dynapipe_hpc.planner.from_config import name_of
from dynapipe_hpc.planner.schedule.one_f_one_b import one_f_one_b
from dynapipe_hpc.planner.schedule.outlier import Outlier
from dynapipe_hpc.planner.schedule.pipeline import schedule_pipeline
from dynapipe_hpc.planner.schedule.schedule_rule import InfeasibleScheduleError


def explain_choice(choice: Choice) -> Iterator[str]:
    """A header, and a line per candidate; a star marks the best."""
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
