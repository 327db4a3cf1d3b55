"""Improves the order of passes of one schedule."""

from dynapipe_hpc import _kernels
from dynapipe_hpc.plan.cluster import Link
from dynapipe_hpc.planner.cost.cost_model import FloatArray, StageCosts
from dynapipe_hpc.planner.schedule.schedule_rule import Schedule


def refine(
    schedule: Schedule,
    costs: StageCosts,
    activation_limit_bytes: FloatArray,
    link: Link,
    *,
    n_moves: int,
    seed: int = 0,
) -> Schedule:
    """Moves single passes and exchanges micro-batches for a shorter makespan.

    What rules cannot do may come out: a stage that waits for a pass that matters more, and
    micro-batches that overtake each other.

    Args:
        schedule: Of a rule, so one that runs to its end within the limit.
        costs: Of its micro-batches.
        activation_limit_bytes: Shape (n_stages,), kept.
        link: Between neighbouring stages.
        n_moves: How many changes are tried.
        seed: Of the changes, which are random.

    Returns:
        The best schedule found, split as the given one, and never longer.
    """
    codes = _kernels.refine_schedule(
        schedule.codes,
        costs.table,
        activation_limit_bytes,
        link.latency_ms,
        link.bytes_per_ms,
        link.full_duplex,
        n_moves,
        seed,
    )
    return Schedule(codes)
