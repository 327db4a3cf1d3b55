"""Schedules whose order of passes does not depend on times, and the paper's cyclic one."""

from functools import lru_cache
from itertools import zip_longest

import numpy as np

from dynapipe_hpc import _kernels
from dynapipe_hpc.plan.cluster import Link
from dynapipe_hpc.planner.cost.cost_model import FloatArray, IntArray, StageCosts
from dynapipe_hpc.planner.schedule.feasibility import check_whole
from dynapipe_hpc.planner.schedule.schedule_rule import INSTANT, PassKind, Schedule


def forward_only(costs: StageCosts, _limit_bytes: FloatArray, _link: Link = INSTANT) -> Schedule:
    """Forward passes of all micro-batches on every stage, in the order in which they enter."""
    codes = len(PassKind) * np.arange(costs.n_microbatches, dtype=np.int32) + PassKind.FORWARD
    return Schedule(np.tile(codes.astype(np.int32), (costs.n_stages, 1)))


def one_f_one_b(costs: StageCosts, _limit_bytes: FloatArray, _link: Link = INSTANT) -> Schedule:
    """Fills the pipeline, then alternates strictly between backward and forward passes.

    Stage s of n begins with n - s forward passes and never has more than n - s micro-batches in
    flight, whatever they cost.

    Source: Narayanan et al., "PipeDream", SOSP 2019, doi:10.1145/3341301.3359646.
    """
    check_whole(costs)
    return _order(costs.n_microbatches, costs.n_stages)


@lru_cache(maxsize=256)
def _order(n_microbatches: int, n_stages: int) -> Schedule:
    """The order of the passes, which depends on these numbers and not on costs."""
    first = len(PassKind) * np.arange(n_microbatches)
    forwards, backwards = ((first + k).tolist() for k in (PassKind.FORWARD, PassKind.BACKWARD))
    warm_ups = range(n_stages, 0, -1)
    codes = np.array([_alternating(forwards, backwards, n) for n in warm_ups], np.int32)
    codes.setflags(write=False)
    return Schedule(codes)


def _alternating(forwards: list[int], backwards: list[int], n_warm_up: int) -> list[int]:
    turns = zip_longest(backwards, forwards[n_warm_up:])
    return forwards[:n_warm_up] + [code for turn in turns for code in turn if code is not None]


def zb_h1(costs: StageCosts, _limit_bytes: FloatArray, _link: Link = INSTANT) -> Schedule:
    """Runs 1F1B with deferred weight gradients; later stages defer more of them.

    Gradients reach the earlier stages sooner, as no stage computes weight gradients on the way,
    and the later stages have work left while the pipeline drains. Stage s of n warms up with
    n - s micro-batches and keeps s more whose W is deferred: never more than n, which is what
    the first stage of 1F1B keeps.

    Source: Qi et al., "Zero Bubble Pipeline Parallelism", ICLR 2024, arXiv:2401.10241, schedule H1.
    """
    check_whole(costs)
    return _split_order(costs.n_microbatches, costs.n_stages)


@lru_cache(maxsize=256)
def _split_order(n_microbatches: int, n_stages: int) -> Schedule:
    """The order of the passes, which depends on these numbers and not on costs."""
    of_stages = [_split_codes(n_microbatches, n_stages - s, s) for s in range(n_stages)]
    codes = np.array(of_stages, np.int32)
    codes.setflags(write=False)
    return Schedule(codes)


def _split_codes(n_microbatches: int, n_warm_up: int, n_put_off: int) -> IntArray:
    """Passes of a stage: F is `n_warm_up` micro-batches ahead of B, W `n_put_off` after B."""
    turns = np.arange(-n_warm_up, n_microbatches + n_put_off)
    microbatch = np.add.outer(turns, [0, -n_put_off, n_warm_up])
    codes = len(PassKind) * microbatch + [PassKind.BACKWARD, PassKind.WEIGHT, PassKind.FORWARD]
    return np.asarray(codes[(microbatch >= 0) & (microbatch < n_microbatches)])


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
