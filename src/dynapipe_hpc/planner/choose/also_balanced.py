"""A search with packed rows of equal work beside it."""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np

from dynapipe_hpc.data.microbatch import Layout, Recompute
from dynapipe_hpc.data.sample import Sample
from dynapipe_hpc.plan.cluster import Cluster
from dynapipe_hpc.planner.batch.memory import DoesNotFitError, NotMeasuredError
from dynapipe_hpc.planner.batch.microbatch_costs import microbatch_costs
from dynapipe_hpc.planner.batch.packed_balanced import PackedBalanced
from dynapipe_hpc.planner.batch.packed_shapes import Sums, packed_shapes
from dynapipe_hpc.planner.batch.row_length import tokens_of
from dynapipe_hpc.planner.batch.windows.packed_windows import large_are_cheap
from dynapipe_hpc.planner.choose.choice import Candidate, Choice, Infeasible
from dynapipe_hpc.planner.choose.chooser import Chooser
from dynapipe_hpc.planner.choose.schedule_replicas import ReplicaScheduler
from dynapipe_hpc.planner.cost.cost_model import CostModel, StageCosts
from dynapipe_hpc.planner.cost.derived_cost import OneMode
from dynapipe_hpc.planner.schedule.pipeline import schedule_priced
from dynapipe_hpc.planner.schedule.schedule_rule import InfeasibleScheduleError, ScheduleRule
from dynapipe_hpc.planner.schedule.update import iteration_ms

PER_STAGE = 2.0 ** (np.arange(9) / 2)
"""Numbers of micro-batches per stage that are compared first: 1 to 16."""
NEAR, NEAR_A_STEP = 1.01, 1.1
"""Ratios to the iteration that the search found up to which numbers between these are compared.

The best number is at most a fourth root of 2 from one of them, which takes up to 1 % longer; where
time rises in a step, up to 10 %.
"""
PROMISING = 1.01
"""Ratio up to which the best number is tried.

Small micro-batches at both ends may make the plan a little shorter than that of equal ones.
"""
MAX_SAMPLES = 2000
"""Largest batch that is tried: time and memory of groups grow with the square."""


@dataclass(frozen=True, slots=True)
class AlsoBalanced:
    """Adds plans of `PackedBalanced` to those of a search, where they may be better.

    A search makes micro-batches of neighbours in an order of the samples. Groups of any samples
    are more equal, which counts where many replicas share the work, or where time rises in a step:
    a GPU that waits for launches takes as long for any number of tokens below some. About how long
    an iteration takes is known before any group is formed, from the schedule of micro-batches that
    all have the same share; groups are formed only where that is not far behind what the search
    found. Replicas of different speed are left to the search, which knows how much each can do.

    Attributes:
        search: Search for plans of a decoder-only model.
        schedule_rules: Ways to order passes, all of which are tried.
        cost: Predicts time and memory.
        cluster: What the plans are for.
    """

    search: Chooser
    schedule_rules: Sequence[ScheduleRule]
    cost: CostModel
    cluster: Cluster

    def choose(self, samples: Sequence[Sample]) -> Choice:
        """The plans of both, see `Chooser`."""
        choice = self.search.choose(samples)
        is_left = self.cost.slowness is not None or len(samples) > MAX_SAMPLES
        if is_left or not choice.candidates:
            return choice
        found_ms = choice.best.iteration_ms
        return replace(choice, tried=(*choice.tried, *self._balanced(samples, found_ms)))

    def _balanced(
        self, samples: Sequence[Sample], found_ms: float
    ) -> Iterator[Candidate | Infeasible]:
        """A plan of the best size, in the least mode of recomputation in which it fits."""
        of_replica = _share(samples, self.cluster.n_replicas)
        near = NEAR_A_STEP if large_are_cheap(samples, self.cost, self.cluster) else NEAR
        longest = _share([max(samples, key=lambda sample: sample.attention_pairs)], 1)
        for mode in self.cost.recompute_modes:
            trip_ms = self._costs(longest, mode).work_ms.sum()
            if found_ms <= trip_ms < math.inf:
                return  # rows are whole, so that the trip through all stages is part of the time
            expected_ms, count = self._best_count(of_replica, mode)
            if expected_ms < near * found_ms:
                expected_ms, count = self._better_count(of_replica, mode, (expected_ms, count))
            if PROMISING * found_ms <= expected_ms < math.inf:
                return
            if max(trip_ms, expected_ms) < math.inf:
                # Replicas have equal work, not equal tokens, so that some have more than a share.
                n_tokens = of_replica.inputs[0] / count * (1 + 0.5 / count)
                rule = PackedBalanced(int(n_tokens) + 1)
                try:
                    replicas = rule(samples, OneMode(self.cost, mode), self.cluster)
                except (DoesNotFitError, NotMeasuredError):
                    continue
                costs = [microbatch_costs(replica, self.cost) for replica in replicas]
                scheduler = ReplicaScheduler(self.cost, self.cluster, self.schedule_rules)
                tried = scheduler.schedule(f"{rule}, recompute {mode.text}", replicas, costs)
                yield tried
                if isinstance(tried, Candidate):
                    return

    def _best_count(self, of_replica: Sums, mode: Recompute) -> tuple[float, int]:
        """Least time of an iteration among some numbers of micro-batches, and the number.

        As a rule the time first falls and then grows with the number, so that after two that are
        worse no more are simulated. It is infinite if none runs.
        """
        most = max(1, int(of_replica.n_samples[0]))
        counts = np.unique((self.cluster.n_stages * PER_STAGE).astype(np.int64).clip(max=most))
        known: list[tuple[float, int]] = []
        for count in counts.tolist():
            known.append((self._expected_ms(of_replica, count, mode), count))
            if len(known) > 2 and math.inf > known[-1][0] > known[-2][0] > known[-3][0]:
                break
        return min(known)

    def _better_count(
        self, of_replica: Sums, mode: Recompute, best: tuple[float, int]
    ) -> tuple[float, int]:
        """The same among all numbers, from one on, in steps that become shorter."""
        step = max(1, best[1] // 8)
        while step:
            beside = [best[1] + way for way in (-step, step)]
            others = [
                (self._expected_ms(of_replica, count, mode), count)
                for count in beside
                if 1 <= count <= of_replica.n_samples[0]
            ]
            if min(others, default=best) < best:
                best = min(others)
            else:
                step //= 2
        return best

    def _expected_ms(self, of_replica: Sums, count: int, mode: Recompute) -> float:
        """Time of an iteration with so many equal micro-batches; infinite if they cannot run."""
        costs = self._costs(Sums(*(total / count for total in of_replica)), mode)
        if not np.isfinite(costs.work_ms).all():
            return math.inf
        equal_costs = costs.take(np.zeros(count, np.intp))
        try:
            pipeline = schedule_priced(
                (), equal_costs, self.cost, self.cluster, rules=self.schedule_rules
            )
        except InfeasibleScheduleError:
            return math.inf
        return iteration_ms([pipeline.timeline], self.cost)

    def _costs(self, sums: Sums, mode: Recompute) -> StageCosts:
        shapes = packed_shapes(sums.inputs, sums, self.cost.known_rows)
        return self.cost.of_layout(Layout.PACKED).stage_costs(shapes, mode)


def _share(samples: Sequence[Sample], n_replicas: int) -> Sums:
    """Share of a replica in the samples, their tokens and pairs of tokens."""
    tokens, pairs = (tokens_of(samples, name).sum() for name in ("tokens", "attention_pairs"))
    n_documents = len(samples) + sum(sample.is_pair for sample in samples)
    return Sums(*(np.array([total / n_replicas]) for total in (n_documents, tokens, pairs)))
