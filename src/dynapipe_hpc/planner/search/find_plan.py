"""The search for plans of an iteration: rules construct many, local search improves the best."""

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Self

from dynapipe_hpc._kernels import PlanSearch
from dynapipe_hpc.data.microbatch import MicroBatch, describe_modes
from dynapipe_hpc.planner.batch.dynamic import DynamicBatches
from dynapipe_hpc.planner.search.config import SearchConfig
from dynapipe_hpc.planner.search.rule_plans import rule_plans
from dynapipe_hpc.planner.search.space import ConstructedPlan, Replicas, SearchSpace

N_KEPT = 4
"""Number of constructed plans that are kept for every order of the samples."""
RACE = 25_000
"""Passes after which orders of the samples are compared."""
NEAR = 1.001
"""Ratio to the shortest predicted time up to which a plan is still scheduled by every rule."""
HOPELESS_ORDER = 1.01
"""Ratio to the best order after the race above which an order is dropped."""


@dataclass(frozen=True, slots=True, eq=False)
class FoundPlan:
    """A plan found by the search.

    Attributes:
        way: Human-readable description of how it was found.
        space: The space that it was found in.
        replicas: Windows of every replica.
        makespan_ms: End of the slowest replica by the adaptive schedule, including the reductions
            that follow its last passes (`SearchSpace.reduce_ms`); infinite if unknown, or if a
            constructed plan ends sooner by far.
        effort: Passes scheduled until the end of the round that found it, in its order of the
            samples; 0 if no round found it. A search with less effort does not find it.
    """

    way: str
    space: SearchSpace
    replicas: Replicas
    makespan_ms: float
    effort: int

    @property
    def microbatches(self) -> list[list[MicroBatch]]:
        """Micro-batches of every replica, in the order in which they enter the pipeline."""
        return self.space.microbatches(self.replicas)


@dataclass(frozen=True, slots=True, eq=False)
class Found:
    """The plans found, and the constructed plans that the search began with.

    Attributes:
        searched: Plans that local search found or began with, best first; empty if these begin too
            far behind.
        by_rules: Plans of batch rules; empty likewise.
        constructed: Constructed plans by order of the samples, best first.
        start_ms: Makespan of the best constructed plan or plan of a rule.
    """

    searched: list[FoundPlan]
    by_rules: list[FoundPlan]
    constructed: dict[str, list[ConstructedPlan]]
    start_ms: float


def find_plan(
    spaces: Mapping[str, SearchSpace],
    config: SearchConfig,
    rules: Sequence[DynamicBatches] = (),
    hopeless_ms: float = math.inf,
) -> Found:
    """Searches for the micro-batches, their order, modes and replicas with the least makespan.

    In every order of the samples, plans are constructed and improved. After a race, which does not
    depend on the effort, orders that are much worse are dropped, and the others share the effort.
    So more effort never gives a worse plan, see `SearchSpace.search`.
    A space with a single mode for all windows gets half the effort, as there is none to choose.
    Nothing is searched if the best plan to begin with is hopeless.

    Args:
        spaces: Search spaces by order of the samples, the plainest first; see `search_spaces`.
        config: Effort of the search.
        rules: Batch rules; their plans in the plainest order are starting points, too.
        hopeless_ms: Makespan above which plans to begin with lead to no good one.
    """
    plainest, *_ = spaces
    constructed = {order: space.construct(N_KEPT) for order, space in spaces.items()}
    lanes = [
        _Lane.from_constructed(
            space, constructed[order], rules if order == plainest else (), config.seed
        )
        for order, space in spaces.items()
    ]
    start_ms = min(next(lane.improved(0)).makespan_ms for lane in lanes)
    if start_ms > hopeless_ms:
        return Found([], [], constructed, start_ms)
    kept = _best_orders(lanes)
    whole = config.effort if len(spaces[plainest].windows.modes) > 1 else config.effort // 2
    effort = whole * len(lanes) // len(kept)
    searched = [plan for lane in kept for plan in lane.improved(effort)]
    searched.sort(key=lambda plan: plan.makespan_ms)
    return Found(searched, lanes[0].by_rules, constructed, start_ms)


@dataclass(frozen=True, slots=True, eq=False)
class _Lane:
    """A search space with its search, which begins with constructed plans and those of rules.

    Attributes:
        space: The space.
        by_rules: Plans of batch rules.
        search: The search.
    """

    space: SearchSpace
    by_rules: list[FoundPlan]
    search: PlanSearch

    @classmethod
    def from_constructed(
        cls,
        space: SearchSpace,
        constructed: list[ConstructedPlan],
        rules: Sequence[DynamicBatches],
        seed: int,
    ) -> Self:
        plans = list(rule_plans(rules, space.windows, space.n_replicas))
        give_up_ms = NEAR * constructed[0].makespan_ms
        makespans_ms = space.makespans_ms([plan.replicas for plan in plans], give_up_ms)
        by_rules = [
            FoundPlan(plan.way, space, plan.replicas, ms, 0)
            for plan, ms in zip(plans, makespans_ms, strict=True)
        ]
        starts = [plan.replicas for plan in constructed] + [plan.replicas for plan in by_rules]
        return cls(space, by_rules, space.search(starts, seed))

    def improved(self, effort: int) -> Iterator[FoundPlan]:
        modes = describe_modes(self.space.windows.modes)
        for plan in self.search.improve(effort):
            way = f"local search, {plan.n_moves:,} moves, {modes}"
            yield FoundPlan(way, self.space, plan.replicas, plan.makespan_ms, plan.effort)


def _best_orders(lanes: list[_Lane]) -> list[_Lane]:
    """Orders that are not much worse than the best after a short search, best first."""
    if len(lanes) == 1:
        return lanes
    raced_ms = [min(plan.makespan_ms for plan in lane.improved(RACE)) for lane in lanes]
    ranked = sorted(zip(raced_ms, range(len(lanes)), strict=True))
    return [lanes[i] for ms, i in ranked if ms <= HOPELESS_ORDER * ranked[0][0]]
