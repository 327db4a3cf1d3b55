"""Finds plans of an iteration: constructs many by rules, and improves the best."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Self

from dynapipe_hpc.data.microbatch import MicroBatch
from dynapipe_hpc.planner.batch.dynamic import DynamicBatches
from dynapipe_hpc.planner.search.config import SearchConfig
from dynapipe_hpc.planner.search.rule_plans import rule_plans
from dynapipe_hpc.planner.search.space import ConstructedPlan, Replicas, SearchSpace

N_KEPT = 4
"""How many constructed plans are kept in every order of the samples."""
N_REFINED = 2
"""How many of them are refined."""
RACE = 25_000
"""Passes after which orders of the samples are compared."""
HOPELESS_ORDER = 1.01
"""Over the best order after the race, from where the effort of an order goes to the others."""


@dataclass(frozen=True, slots=True, eq=False)
class FoundPlan:
    """A plan that was found.

    Attributes:
        way: How it was found, for people.
        space: The space that it was found in.
        replicas: Windows of every replica.
        makespan_ms: End of the slowest replica by the adaptive schedule; infinite if unknown.
        effort: Passes scheduled until the end of the round that found it, in its order of the
            samples; 0 if it is no round's. A search with less does not find it.
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
    """The plans that were found, and what they were found from.

    Attributes:
        searched: What rounds of local search found, and what they began with, best first.
        by_rules: What batch rules make.
        constructed: By order of the samples, plans that rules of construction make, best first.
    """

    searched: list[FoundPlan]
    by_rules: list[FoundPlan]
    constructed: dict[str, list[ConstructedPlan]]


def find_plan(
    spaces: Mapping[str, SearchSpace],
    n_replicas: int,
    config: SearchConfig,
    rules: Sequence[DynamicBatches] = (),
) -> Found:
    """Looks for the micro-batches, their order, modes and replicas that finish soonest.

    In every order of the samples plans are constructed and improved; orders that are far behind
    after a race, which does not depend on the effort, leave theirs to the others. So more effort
    is no loss, see `SearchSpace.improve`.
    One mode of recomputation by itself takes half the effort, as there are none to choose from.

    Args:
        spaces: By order of the samples, the plainest first; see `search_spaces`.
        n_replicas: Those that share the work, at most as many as samples.
        config: How hard to look.
        rules: Batch rules, whose plans in the plainest order are starts, too.
    """
    plainest, *_ = spaces
    constructed = {
        order: space.construct(n_replicas, N_KEPT, N_REFINED) for order, space in spaces.items()
    }
    lanes = [
        _Lane.of(space, constructed[order], n_replicas, rules if order == plainest else ())
        for order, space in spaces.items()
    ]
    kept = _best_orders(lanes, config)
    whole = config.effort if len(spaces[plainest].windows.modes) > 1 else config.effort // 2
    effort = whole * len(lanes) // len(kept)
    searched = [plan for lane in kept for plan in lane.improved(effort, config.seed)]
    searched.sort(key=lambda plan: plan.makespan_ms)
    return Found(searched, lanes[0].by_rules, constructed)


@dataclass(frozen=True, slots=True, eq=False)
class _Lane:
    """A space that is searched by itself, and the plans that its search begins with.

    Attributes:
        space: The space.
        constructed: Plans that rules of construction make, best first.
        by_rules: Plans of batch rules.
    """

    space: SearchSpace
    constructed: list[ConstructedPlan]
    by_rules: list[FoundPlan]

    @classmethod
    def of(
        cls,
        space: SearchSpace,
        constructed: list[ConstructedPlan],
        n_replicas: int,
        rules: Sequence[DynamicBatches],
    ) -> Self:
        plans = list(rule_plans(rules, space.windows, n_replicas))
        makespans_ms = space.makespans_ms([plan.replicas for plan in plans])
        by_rules = [
            FoundPlan(plan.way, space, plan.replicas, ms, 0)
            for plan, ms in zip(plans, makespans_ms, strict=True)
        ]
        return cls(space, constructed, by_rules)

    def improved(self, effort: int, seed: int) -> Iterator[FoundPlan]:
        starts = [plan.replicas for plan in self.constructed]
        starts += [plan.replicas for plan in self.by_rules]
        modes = ", ".join(mode.text for mode in self.space.windows.modes)
        for plan in self.space.improve(starts, effort, seed):
            way = f"local search, {plan.n_moves:,} moves, recompute {modes}"
            yield FoundPlan(way, self.space, plan.replicas, plan.makespan_ms, plan.effort)


def _best_orders(lanes: list[_Lane], config: SearchConfig) -> list[_Lane]:
    """Those that are not far behind after a short search, the best first."""
    if len(lanes) == 1:
        return lanes
    raced_ms = [
        min(plan.makespan_ms for plan in lane.improved(RACE, config.seed)) for lane in lanes
    ]
    ranked = sorted(zip(raced_ms, range(len(lanes)), strict=True))
    return [lanes[i] for ms, i in ranked if ms <= HOPELESS_ORDER * ranked[0][0]]
