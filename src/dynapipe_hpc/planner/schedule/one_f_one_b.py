"""1F1B: one forward, one backward."""

from functools import lru_cache
from itertools import zip_longest

import numpy as np

from dynapipe_hpc.plan.cluster import Link
from dynapipe_hpc.planner.cost.cost_model import FloatArray, StageCosts
from dynapipe_hpc.planner.schedule.feasibility import check_whole
from dynapipe_hpc.planner.schedule.schedule_rule import INSTANT, PassKind, Schedule


def one_f_one_b(costs: StageCosts, _limit_bytes: FloatArray, _link: Link = INSTANT) -> Schedule:
    """Fills the pipeline, then alternates strictly between backward and forward passes.

    Stage s of n begins with n - s forward passes and never has more micro-batches in flight,
    whatever they cost.

    Source: Narayanan et al., "PipeDream", SOSP 2019, doi:10.1145/3341301.3359646.
    """
    check_whole(costs)
    return _order(costs.n_microbatches, costs.n_stages)


@lru_cache(maxsize=256)
def _order(n_microbatches: int, n_stages: int) -> Schedule:
    """The passes, whatever their costs: equal numbers of micro-batches have equal passes."""
    first = len(PassKind) * np.arange(n_microbatches)
    forwards, backwards = ((first + k).tolist() for k in (PassKind.FORWARD, PassKind.BACKWARD))
    warm_ups = range(n_stages, 0, -1)
    codes = np.array([_alternating(forwards, backwards, n) for n in warm_ups], np.int32)
    codes.setflags(write=False)
    return Schedule(codes)


def _alternating(forwards: list[int], backwards: list[int], n_warm_up: int) -> list[int]:
    turns = zip_longest(backwards, forwards[n_warm_up:])
    return forwards[:n_warm_up] + [code for turn in turns for code in turn if code is not None]
