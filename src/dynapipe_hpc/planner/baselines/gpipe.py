"""GPipe: all forward passes, then all backward passes."""

from dynapipe_hpc.plan.cluster import Link
from dynapipe_hpc.planner.cost.cost_model import FloatArray, StageCosts
from dynapipe_hpc.planner.schedule.feasibility import check_each_fits, check_peaks
from dynapipe_hpc.planner.schedule.schedule_rule import INSTANT, Pass, PassKind, Schedule


def gpipe(costs: StageCosts, activation_limit_bytes: FloatArray, _link: Link = INSTANT) -> Schedule:
    """Runs all forward passes on every stage before the first backward pass there.

    Every stage has all micro-batches in flight at once: a baseline for pipelines with ample memory.

    Args:
        costs: Costs of the replica's micro-batches.
        activation_limit_bytes: Device memory less static memory, shape (n_stages,).

    Raises:
        InfeasibleScheduleError: A stage needs more memory; the order is fixed, so there is no
            alternative.

    Source:
        Huang et al., "GPipe", NeurIPS 2019, arXiv:1811.06965; backward passes here in the order
        of the forward passes.
    """
    check_each_fits(costs, activation_limit_bytes)
    kinds = (PassKind.FORWARD, PassKind.BACKWARD)
    passes = tuple(Pass(kind, i) for kind in kinds for i in range(costs.n_microbatches))
    schedule = Schedule.from_passes((passes,) * costs.n_stages)
    check_peaks("GPipe", schedule, costs, activation_limit_bytes)
    return schedule
