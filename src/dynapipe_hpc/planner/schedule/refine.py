"""Local search over the order of passes of one schedule."""

from dynapipe_hpc import _kernels
from dynapipe_hpc.plan.cluster import Link
from dynapipe_hpc.planner.cost.cost_model import FloatArray, StageCosts
from dynapipe_hpc.planner.schedule.schedule_rule import Schedule, kernel_link


def refine(
    schedule: Schedule,
    costs: StageCosts,
    activation_limit_bytes: FloatArray,
    link: Link,
    *,
    n_moves: int,
    seed: int = 0,
) -> Schedule:
    """Moves single passes and exchanges micro-batches, so that gradients are reduced sooner.

    The result may do what rules cannot: a stage may wait for a more important pass, and
    micro-batches may overtake each other.

    Args:
        schedule: A schedule made by a rule, so without deadlock and within the limit.
        costs: Costs of its micro-batches; without `reduce_ms` the last pass counts.
        activation_limit_bytes: Limit that is kept, shape (n_stages,).
        link: Link between neighbouring stages.
        n_moves: Number of moves to try.
        seed: Seed of the random moves.

    Returns:
        The best schedule found, never later than the given one; W is split as before.
    """
    codes = _kernels.refine_schedule(
        schedule.codes,
        costs.checked,
        activation_limit_bytes,
        kernel_link(link),
        n_moves,
        seed,
        costs.reduce_ms,
    )
    return Schedule(codes)
