"""Zero bubble H1: 1F1B whose backward passes are split."""

from dynapipe_hpc.plan.cluster import Link
from dynapipe_hpc.planner.cost.cost_model import FloatArray, StageCosts
from dynapipe_hpc.planner.schedule.feasibility import check_each_fits, check_peaks
from dynapipe_hpc.planner.schedule.schedule_rule import INSTANT, Pass, PassKind, Schedule


def zb_h1(costs: StageCosts, activation_limit_bytes: FloatArray, _link: Link = INSTANT) -> Schedule:
    """Runs 1F1B with deferred weight gradients; later stages defer more of them.

    Gradients reach the earlier stages sooner, as no stage computes weight gradients on the way,
    and the later stages have work left while the pipeline drains. Stage s of n warms up with
    n - s micro-batches and keeps s more whose W is deferred: never more than n, which is what
    the first stage of 1F1B keeps.

    Args:
        costs: Costs of the replica's micro-batches.
        activation_limit_bytes: Device memory less static memory, shape (n_stages,).

    Raises:
        InfeasibleScheduleError: A stage needs more memory; the order is fixed, so there is no
            alternative.

    Source:
        Qi et al., "Zero Bubble Pipeline Parallelism", ICLR 2024, arXiv:2401.10241, schedule H1.
    """
    check_each_fits(costs, activation_limit_bytes)
    n = costs.n_stages
    schedule = Schedule.of(_passes(costs.n_microbatches, n - s, s) for s in range(n))
    check_peaks("zero bubble H1", schedule, costs, activation_limit_bytes)
    return schedule


def _passes(n_microbatches: int, n_warm_up: int, n_put_off: int) -> tuple[Pass, ...]:
    """Passes of a stage: F is `n_warm_up` micro-batches ahead of B, W `n_put_off` after B."""
    turns = [
        (Pass(PassKind.BACKWARD, i), Pass(PassKind.WEIGHT, i - n_put_off),
         Pass(PassKind.FORWARD, i + n_warm_up))
        for i in range(-n_warm_up, n_microbatches + n_put_off)
    ]  # fmt: skip
    return tuple(p for turn in turns for p in turn if 0 <= p.microbatch < n_microbatches)
