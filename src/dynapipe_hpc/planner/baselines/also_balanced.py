"""A search that is hardly ever behind packed rows of equal work."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np

from dynapipe_hpc.data.microbatch import Layout, Recompute
from dynapipe_hpc.data.sample import Sample
from dynapipe_hpc.plan.cluster import Cluster
from dynapipe_hpc.planner.baselines.packed.packed_balanced import PackedBalanced
from dynapipe_hpc.planner.batch.memory import DoesNotFitError, NotMeasuredError
from dynapipe_hpc.planner.batch.microbatch_costs import microbatch_costs
from dynapipe_hpc.planner.batch.objective import fill_ms
from dynapipe_hpc.planner.batch.packed_shapes import Sums, packed_shapes
from dynapipe_hpc.planner.batch.row_length import tokens_of
from dynapipe_hpc.planner.batch.windows.packed_windows import large_are_cheap
from dynapipe_hpc.planner.choose.choice import Candidate, Choice
from dynapipe_hpc.planner.choose.chooser import Chooser
from dynapipe_hpc.planner.choose.schedule_replicas import ReplicaScheduler
from dynapipe_hpc.planner.cost.cost_model import CostModel, IntArray, StageCosts
from dynapipe_hpc.planner.cost.derived_cost import OneMode
from dynapipe_hpc.planner.schedule.schedule_rule import ScheduleRule

PER_STAGE = 2.0 ** (np.arange(9) / 4)
"""Numbers of micro-batches per stage to choose from: 1 to 4."""
N_TRIED = 2
"""Number of these that are tried, the most promising first."""
ROOM = 1.02
"""Ratio of the tokens of a micro-batch to its share: replicas have equal work, not equal tokens."""


@dataclass(frozen=True, slots=True)
class AlsoBalanced:
    """Adds plans of `PackedBalanced` to those of a search, where large micro-batches are cheap.

    A search makes micro-batches of neighbours in an order of the samples. Where a GPU waits for
    launches up to some number of tokens, it is best to have just as many in each, for which groups
    of any samples are needed. What is tried does not depend on what the search found, so neither
    more effort nor slices give a worse plan.

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
        if not choice.candidates or not large_are_cheap(samples, self.cost, self.cluster):
            return choice
        counts = np.unique((self.cluster.n_stages * PER_STAGE).astype(np.int64))
        expected = [
            (ms, mode, count)
            for mode in self.cost.recompute_modes
            for ms, count in zip(self._expected_ms(samples, counts, mode), counts, strict=True)
            if ms < np.inf
        ]
        added = self._balanced(samples, sorted(expected)[:N_TRIED], choice.best.makespan_ms)
        return replace(choice, tried=(*choice.tried, *added))

    def _expected_ms(
        self, samples: Sequence[Sample], counts: IntArray, mode: Recompute
    ) -> list[float]:
        """Time of a replica with so many equal micro-batches; infinite if these are too large."""
        tokens, pairs = (tokens_of(samples, name).sum() for name in ("tokens", "attention_pairs"))
        n_documents = len(samples) + sum(sample.is_pair for sample in samples)
        shares = 1 / (counts * self.cluster.n_replicas)
        sums = Sums(*(total * shares for total in (n_documents, tokens, pairs)))
        shapes = packed_shapes(tokens * shares, sums, self.cost.known_rows)
        work_ms = self.cost.of_layout(Layout.PACKED).stage_costs(shapes, mode).work_ms
        expected: list[float] = ((counts - 1) * work_ms.max(axis=1) + work_ms.sum(axis=1)).tolist()
        return expected

    def _balanced(
        self,
        samples: Sequence[Sample],
        expected: Sequence[tuple[float, Recompute, int]],
        best_ms: float,
    ) -> Iterator[Candidate]:
        """Plans with these modes and numbers of micro-batches, if they fit and may be better."""
        scheduler = ReplicaScheduler(self.cost, self.cluster, self.schedule_rules)
        share = sum(sample.tokens for sample in samples) / self.cluster.n_replicas
        for _, mode, count in expected:
            rule = PackedBalanced(int(ROOM * share / count) + 1)
            try:
                replicas = rule(samples, OneMode(self.cost, mode), self.cluster)
            except (DoesNotFitError, NotMeasuredError):
                continue
            costs = [microbatch_costs(replica, self.cost) for replica in replicas]
            if max(map(_least_ms, costs)) < best_ms:
                way = f"{rule}, recompute {mode.text}"
                candidate = scheduler.schedule(way, replicas, costs)
                if isinstance(candidate, Candidate):
                    yield candidate


def _least_ms(costs: StageCosts) -> float:
    """Least time of the micro-batches of a replica: of its busiest stage, and of a fill."""
    return float(costs.work_ms.sum(axis=0).max() + fill_ms(costs).min())
