"""The paper's memory-aware cyclic schedule."""

from dynapipe_hpc import _kernels
from dynapipe_hpc.plan.cluster import Link
from dynapipe_hpc.planner.cost.cost_model import FloatArray, StageCosts
from dynapipe_hpc.planner.schedule.feasibility import check_whole
from dynapipe_hpc.planner.schedule.schedule_rule import INSTANT, Schedule


def cyclic(
    costs: StageCosts, activation_limit_bytes: FloatArray, _link: Link = INSTANT
) -> Schedule:
    """Starts micro-batches as early as memory allows, so that stages have work in reserve.

    In every cycle, each stage runs one backward and then one forward pass, among those ready at
    the start of the cycle; a forward pass waits while it would exceed the stage's memory. Without
    a limit, stage s of n has up to 2 * (n - s) - 1 micro-batches in flight.

    Source: Jiang et al., "DynaPipe", EuroSys
    2024, doi:10.1145/3627703.3629585, algorithm 1; docs/decisions/0003 lists the differences.
    """
    check_whole(costs)
    return Schedule(_kernels.cyclic_schedule(costs.checked, activation_limit_bytes))
