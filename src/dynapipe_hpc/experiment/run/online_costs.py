"""Costs that a run learns from its own passes, and ranks that are slow in them."""

import threading
from collections.abc import Sequence
from typing import Any

import numpy as np

from dynapipe_hpc.data.errors import InputError
from dynapipe_hpc.executor.trace import IterationTrace
from dynapipe_hpc.experiment.experiment import Experiment
from dynapipe_hpc.experiment.run.iteration import ExecutedIteration
from dynapipe_hpc.plan.cluster import Cluster
from dynapipe_hpc.plan.instruction import (
    Backward,
    BackwardInput,
    BackwardWeight,
    Forward,
    Load,
)
from dynapipe_hpc.plan.rank_plan import RankPlan
from dynapipe_hpc.planner.batch.microbatch_costs import microbatch_costs
from dynapipe_hpc.planner.cost.corrected_cost import Timed
from dynapipe_hpc.planner.cost.cost_model import CostModel, FloatArray
from dynapipe_hpc.planner.cost.pass_times import PassTimes
from dynapipe_hpc.planner.make_plans import Planner

SLOW = 1.2
"""Ratio to the usual time from which a rank is named."""
RECOVERED = 1.1
"""Ratio up to which it is said that the rank is no longer slow."""
USUAL = 0.98
"""Share of the usual time that is left after another iteration: the last fifty count."""
MIN_SEEN = 10
"""Number of iterations after which it is known what is usual."""


class StoppedError(Exception):
    """Planning is no longer needed."""


class SlowRanks:
    """Ranks whose passes take longer than they used to, or than those of other replicas.

    What was usual before a rank became slow stays the usual until it is so again.
    """

    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster
        self._usual = np.ones((cluster.n_replicas, cluster.n_stages))
        self._is_slow = np.zeros(self._usual.shape, bool)
        self._n_seen = 0

    def add(self, now: FloatArray) -> list[str]:
        """Takes note of an iteration; returns a line for every rank that has changed.

        `now` are times as multiples of what the cost table says, shape (n_replicas, n_stages).
        """
        self._n_seen += 1
        if self._n_seen <= MIN_SEEN:
            self._usual = now
            return []
        ratio = now / np.minimum(self._usual, now.min(axis=0))
        is_slow = ratio > np.where(self._is_slow, RECOVERED, SLOW)
        changed = np.argwhere(is_slow != self._is_slow).tolist()
        self._is_slow = is_slow
        self._usual = np.where(is_slow, self._usual, USUAL * self._usual + (1 - USUAL) * now)
        return [self._line(replica, stage, ratio[replica, stage]) for replica, stage in changed]

    def _line(self, replica: int, stage: int, ratio: float) -> str:
        rank = self._cluster.rank_of(replica, stage)
        note = (
            f"{ratio:.2f} times as long as usual"
            if self._is_slow[replica, stage]
            else "as long as usual again"
        )
        return f"rank {rank} (stage {stage} of replica {replica}) takes {note} for its passes"


class OnlineCosts:
    """Pass times of the iterations so far, by which later ones are planned.

    Iteration k is planned by the iterations before k - look_ahead, whenever they are planned and
    whoever plans it: these are done, on all ranks, when there may be a plan of it. So plans depend
    on what was measured, but not on how far ahead a planner is.

    One thread adds iterations, another plans.
    """

    def __init__(self, experiment: Experiment, n_done: int, earlier: Any = None) -> None:
        """Continues after `n_done` iterations, when `state` was `earlier`.

        Anything else, as of another cluster, is not used.
        """
        self._experiment = experiment
        self._look_ahead = experiment.config.store.look_ahead
        self._first, self._n_done = n_done, n_done
        cluster = experiment.config.cluster
        self._size = (cluster.n_replicas, cluster.n_stages)
        known = _restored(earlier, n_done, self._size)
        self._known = known or {n_done: PassTimes.none(*self._size)}
        self._slow_ranks = SlowRanks(cluster)
        self._changed = threading.Condition()
        self._is_closed = False

    @property
    def state(self) -> list[list[float]]:
        """State of the next plans: pass times before the last iterations, oldest first."""
        return [times.numbers for times in self._known.values()]

    def pass_times(self, executed: ExecutedIteration) -> Sequence[float]:
        """The numbers of `PassTimes` that this rank adds to those of an iteration.

        The first iteration of a process does not count, as much is done then for the first time.
        Nor do other shards than the first, which execute the same.
        """
        plan, trace = executed.plan, executed.trace
        if not executed.is_first_shard or plan.iteration == self._first:
            return PassTimes.none(*self._size).numbers
        cost, factors = self._experiment.planner.cost, self._known[self._n_done].factors
        n_replicas, _ = self._size
        return measured_passes(plan, trace, cost, factors, n_replicas=n_replicas).numbers

    def add(self, numbers: Sequence[float]) -> list[str]:
        """Adds the next iteration, by the sums over ranks of what `pass_times` returned.

        Returns a line for every rank that has become slow, or is no longer.
        """
        passes = PassTimes.from_numbers(numbers, *self._size)
        with self._changed:
            self._known[self._n_done + 1] = self._known[self._n_done].after(passes)
            self._n_done += 1
            for n in [n for n in self._known if n < self._n_done - self._look_ahead]:
                del self._known[n]
            self._changed.notify_all()
        return self._slow_ranks.add(self._known[self._n_done].levels)

    def planner(self, iteration: int) -> Planner:
        """The planner of an iteration, whose costs are corrected; waits until they are known.

        Raises `StoppedError`: No more iterations will be added.
        """
        n_done = iteration - self._look_ahead
        with self._changed:
            self._changed.wait_for(lambda: self._is_closed or n_done <= self._n_done)
            if self._is_closed:
                raise StoppedError
            times = self._known[max(n_done, min(self._known))]
        return self._experiment.corrected_planner(times.corrections)

    def close(self) -> None:
        """Wakes the thread that waits for measurements, to end."""
        with self._changed:
            self._is_closed = True
            self._changed.notify_all()


def _restored(earlier: Any, n_done: int, size: tuple[int, int]) -> dict[int, PassTimes]:
    """Pass times by number of iterations done; none if they are not of as many ranks."""
    try:
        times = [PassTimes.from_numbers(numbers, *size) for numbers in earlier or ()]
    except (InputError, TypeError, ValueError):
        return {}
    return dict(zip(range(n_done - len(times) + 1, n_done + 1), times, strict=True))


def measured_passes(
    plan: RankPlan, trace: IterationTrace, cost: CostModel, factors: FloatArray, *, n_replicas: int
) -> PassTimes:
    """Times of the passes that a rank has executed, each beside its prediction by `cost`.

    Reading the tokens of a micro-batch is part of its forward pass, as in cost tables. `factors`
    are those known so far, see `PassTimes.factors`.
    """
    costs = microbatch_costs(plan.microbatches, cost)
    columns = (costs.forward_ms, costs.backward_ms, costs.weight_ms, costs.splitting_ms)
    of_microbatch = [column[:, plan.stage].tolist() for column in columns]
    passes = PassTimes.none(n_replicas, costs.n_stages)
    for step, start_ms, end_ms in zip(plan.instructions, trace.start_ms, trace.end_ms, strict=True):
        if not isinstance(step, Load | Forward | Backward | BackwardInput | BackwardWeight):
            continue
        forward, backward, weight, splitting = (each[step.microbatch] for each in of_microbatch)
        match step:
            case Load():
                parts, predicted_ms = [Timed.FORWARD], 0.0
            case Forward():
                parts, predicted_ms = [Timed.FORWARD], forward
            case Backward():
                parts, predicted_ms = [Timed.GRADIENT, Timed.WEIGHT], backward
            case BackwardInput():
                parts, predicted_ms = [Timed.GRADIENT], backward - weight + splitting
            case BackwardWeight():
                parts, predicted_ms = [Timed.WEIGHT], weight
        microbatch = plan.microbatches[step.microbatch]
        at = np.s_[microbatch.layout, microbatch.recompute, plan.stage, parts]
        passes.predicted_ms[at] += predicted_ms
        passes.measured_ms[at] += end_ms - start_ms
    rank = (plan.replica, plan.stage)
    passes.expected_ms[rank] = (factors * passes.predicted_ms).sum()
    passes.taken_ms[rank] = passes.measured_ms.sum()
    return passes
