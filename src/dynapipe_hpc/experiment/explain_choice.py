"""Why a plan was chosen: the candidates that were compared."""

from collections.abc import Iterator

from dynapipe_hpc.planner.choice import Candidate, Choice
from dynapipe_hpc.planner.schedule.config import name_of
from dynapipe_hpc.planner.schedule.schedule_rule import InfeasibleScheduleError


def explain_choice(choice: Choice) -> Iterator[str]:
    """The plans that a search began with, and a line per candidate, a star before the winner."""
    for order, plans in choice.constructed.items():
        yield f"constructed, samples {order}: rules | makespan"
        yield from (f"  {plan} | {plan.makespan_ms:10,.1f} ms" for plan in plans)
    width = max(len(candidate.way) for candidate in choice.candidates)
    yield "candidates: way to micro-batches | makespan | highest peak | schedule of each replica"
    for candidate in choice.candidates:
        mark = "*" if candidate is choice.best else " "
        yield f"{mark} {candidate.way:<{width}} | {_outcome(candidate)}"


def _outcome(candidate: Candidate) -> str:
    if isinstance(candidate.pipelines, InfeasibleScheduleError):
        return f"infeasible: {candidate.pipelines}"
    peak_bytes = max(pipeline.timeline.peak_bytes.max() for pipeline in candidate.pipelines)
    rules = ", ".join(name_of(pipeline.rule) for pipeline in candidate.pipelines)
    return f"{candidate.makespan_ms:10,.1f} ms | {peak_bytes / 1e6:10,.1f} MB | {rules}"
