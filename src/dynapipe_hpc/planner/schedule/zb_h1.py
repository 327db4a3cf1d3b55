"""Zero bubble H1: 1F1B whose backward passes are split."""

from functools import lru_cache

import numpy as np

from dynapipe_hpc.plan.cluster import Link
from dynapipe_hpc.planner.cost.cost_model import FloatArray, IntArray, StageCosts
from dynapipe_hpc.planner.schedule.feasibility import check_whole
from dynapipe_hpc.planner.schedule.schedule_rule import INSTANT, PassKind, Schedule


def zb_h1(costs: StageCosts, _limit_bytes: FloatArray, _link: Link = INSTANT) -> Schedule:
    """Runs 1F1B with deferred weight gradients; later stages defer more of them.

    Gradients reach the earlier stages sooner, as no stage computes weight gradients on the way,
    and the later stages have work left while the pipeline drains. Stage s of n warms up with
    n - s micro-batches and keeps s more whose W is deferred: never more than n, which is what
    the first stage of 1F1B keeps.

    Source: Qi et al., "Zero Bubble Pipeline Parallelism", ICLR 2024, arXiv:2401.10241, schedule H1.
    """
    check_whole(costs)
    return _order(costs.n_microbatches, costs.n_stages)


@lru_cache(maxsize=256)
def _order(n_microbatches: int, n_stages: int) -> Schedule:
    """The passes, whatever their costs: equal numbers of micro-batches have equal passes."""
    of_stages = [_codes(n_microbatches, n_stages - s, s) for s in range(n_stages)]
    codes = np.array(of_stages, np.int32)
    codes.setflags(write=False)
    return Schedule(codes)


def _codes(n_microbatches: int, n_warm_up: int, n_put_off: int) -> IntArray:
    """Passes of a stage: F is `n_warm_up` micro-batches ahead of B, W `n_put_off` after B."""
    turns = np.arange(-n_warm_up, n_microbatches + n_put_off)
    microbatch = np.add.outer(turns, [0, -n_put_off, n_warm_up])
    codes = len(PassKind) * microbatch + [PassKind.BACKWARD, PassKind.WEIGHT, PassKind.FORWARD]
    return np.asarray(codes[(microbatch >= 0) & (microbatch < n_microbatches)])
