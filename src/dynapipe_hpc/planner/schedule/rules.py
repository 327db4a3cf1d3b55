"""The schedule rules, and those that a configuration names."""

from collections.abc import Iterable, Mapping
from functools import lru_cache
from itertools import zip_longest

import numpy as np

from dynapipe_hpc import _kernels
from dynapipe_hpc.plan.cluster import Link
from dynapipe_hpc.planner.cost.cost_model import FloatArray, IntArray, StageCosts
from dynapipe_hpc.planner.schedule.config import RuleName, ScheduleConfig
from dynapipe_hpc.planner.schedule.schedule_rule import (
    INSTANT,
    InfeasibleScheduleError,
    PassKind,
    Schedule,
    ScheduleRule,
    kernel_link,
)


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
    _check_whole(costs)
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
    _check_whole(costs)
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
    _check_whole(costs)
    return Schedule(_kernels.cyclic_schedule(costs.checked, activation_limit_bytes))


def _check_whole(costs: StageCosts) -> None:
    """Refuses slices for a fixed order: their backward passes run in the reverse order."""
    if costs.later_slices is not None:
        raise InfeasibleScheduleError("slices of samples need an adaptive schedule")


def adaptive(
    costs: StageCosts, activation_limit_bytes: FloatArray, link: Link = INSTANT
) -> Schedule:
    """List scheduling: each stage runs what has arrived, backward passes first, as memory allows.

    Unlike the cyclic schedule it depends on times: a stage is idle only while nothing that it may
    run has arrived, whatever the micro-batches cost. Samples go first in, first out; of a sample
    that runs as slices, the last slice returns first.

    Source: The memory-aware injection of Jiang et al., "DynaPipe", EuroSys 2024,
    doi:10.1145/3627703.3629585, in simulated time instead of cycles.
    """
    return _list_schedule(costs, activation_limit_bytes, link, split_backward=False)


def adaptive_split(
    costs: StageCosts, activation_limit_bytes: FloatArray, link: Link = INSTANT
) -> Schedule:
    """An adaptive schedule whose weight gradients (W) are computed while a stage would be idle.

    W also runs when the memory that it frees is needed. Source of separate passes: Qi et al., "Zero
    Bubble Pipeline Parallelism", ICLR 2024, arXiv:2401.10241.
    """
    return _list_schedule(costs, activation_limit_bytes, link, split_backward=True)


def _list_schedule(
    costs: StageCosts, activation_limit_bytes: FloatArray, link: Link, *, split_backward: bool
) -> Schedule:
    codes = _kernels.list_schedule(
        costs.checked,
        activation_limit_bytes,
        kernel_link(link),
        split_backward,
        costs.later_slices,
        costs.reduce_ms,
    )
    return Schedule(codes)


RULES: Mapping[RuleName, ScheduleRule] = {
    "1f1b": one_f_one_b,
    "cyclic": cyclic,
    "adaptive": adaptive,
}
"""Schedule rules that do not split backward passes."""

SPLIT_RULES: Mapping[RuleName, ScheduleRule] = {
    "1f1b": one_f_one_b,
    "zb_h1": zb_h1,
    "adaptive": adaptive_split,
}
"""Schedule rules to choose from where backward passes may be split."""

_NAMES = {rule: name for rules in (RULES, SPLIT_RULES) for name, rule in rules.items()}


def name_of(rule: ScheduleRule) -> str:
    """The name of a rule in a configuration."""
    return _NAMES.get(rule, "the schedule rule")


def schedule_rules(config: ScheduleConfig) -> list[ScheduleRule]:
    """The schedule rules that a [planner.schedule] table asks for."""
    if not config.split_backward:
        return [RULES[name] for name in config.chosen_rules]
    rules = [SPLIT_RULES[name] for name in config.chosen_rules]
    # Splitting takes time of its own, so that unsplit passes may be faster.
    return [*rules, adaptive] if adaptive_split in rules else rules


def may_split(rules: Iterable[ScheduleRule]) -> bool:
    """Whether any of the rules computes weight gradients in separate passes."""
    return any(rule in (zb_h1, adaptive_split) for rule in rules)
