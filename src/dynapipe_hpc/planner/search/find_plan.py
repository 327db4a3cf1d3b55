"""Finds plans of an iteration: constructs many by rules, and improves the best."""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Self

from dynapipe_hpc.data.microbatch import MicroBatch
from dynapipe_hpc.data.sample import Sample
from dynapipe_hpc.plan.cluster import Cluster
from dynapipe_hpc.planner.batch.candidates import candidates
from dynapipe_hpc.planner.batch.dynamic import DynamicBatches
from dynapipe_hpc.planner.batch.memory import activation_room_bytes
from dynapipe_hpc.planner.batch.order import orders
from dynapipe_hpc.planner.batch.replicas import TooFewMicroBatchesError
from dynapipe_hpc.planner.cost.cost_model import CostModel
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
HOPELESS_MODE = 1.03
"""Over the best start of all modes, from where one mode for all is not searched by itself."""


@dataclass(frozen=True, slots=True, eq=False)
class FoundPlan:
    """A plan that was found.

    Attributes:
        way: How it was found, for people.
        space: The space that it was found in.
        replicas: Windows of every replica.
        makespan_ms: End of the slowest replica by the adaptive schedule; infinite if unknown.
        effort: Passes scheduled in the round that found it; 0 if it is no round's.
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
    samples: Sequence[Sample],
    cost: CostModel,
    cluster: Cluster,
    config: SearchConfig,
    *,
    split_backward: bool,
    rules: Sequence[DynamicBatches] = (),
) -> Found:
    """Looks for the micro-batches, their order, modes and replicas that finish soonest.

    In every order of the samples plans are constructed and improved; orders that are soon far
    behind leave their effort to the others. Where one mode of
    recomputation for all may be as good as any mixture, plans of that mode are also improved by
    themselves, just as if there were no other: so to allow more modes is no loss. Nor is more
    effort, see `SearchSpace.improve`.

    Args:
        samples: Of the iteration, in any order.
        cost: Predicts time and memory.
        cluster: Whose memory limits what may be in flight, and whose link takes time.
        config: How hard to look.
        split_backward: Whether the schedule may give gradients of weights passes of their own.
        rules: Batch rules, whose plans in the plainest order are starts, too.

    Raises:
        DoesNotFitError, NotMeasuredError: A sample cannot run.
        TooFewMicroBatchesError: There are fewer samples than replicas.
    """
    n_replicas = cluster.n_replicas
    if len(samples) < n_replicas:
        raise TooFewMicroBatchesError.of(len(samples), n_replicas)
    spaces = dict(_spaces(samples, cost, cluster, split_backward=split_backward))
    plainest, *_ = spaces
    constructed = {
        order: space.construct(n_replicas, N_KEPT, N_REFINED) for order, space in spaces.items()
    }
    lanes = [
        _Lane.of(space, constructed[order], n_replicas, rules if order == plainest else ())
        for order, space in spaces.items()
    ]
    kept = _best_orders(lanes, config)
    effort = config.effort * len(lanes) // len(kept)
    searched = [
        plan
        for lane in (*kept, *_of_one_mode(kept[0], n_replicas, rules))
        for plan in lane.improved(effort, config.seed)
    ]
    searched.sort(key=lambda plan: plan.makespan_ms)
    return Found(searched, lanes[0].by_rules, constructed)


def _spaces(
    samples: Sequence[Sample], cost: CostModel, cluster: Cluster, *, split_backward: bool
) -> Iterator[tuple[str, SearchSpace]]:
    room_bytes = activation_room_bytes(cost, cluster)
    for order, ordered in orders(samples, cost.is_encoder_decoder).items():
        windows = candidates(ordered, cost, cluster)
        yield order, SearchSpace(windows, room_bytes, cluster.link, split_backward)


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
        by_rules = [
            FoundPlan(way, space, replicas, space.makespan_ms(replicas), 0)
            for way, replicas in rule_plans(rules, space.windows, n_replicas)
        ]
        return cls(space, constructed, by_rules)

    @property
    def start_ms(self) -> float:
        """Makespan of the best start."""
        starts_ms = [plan.makespan_ms for plan in self.constructed]
        starts_ms += [plan.makespan_ms for plan in self.by_rules]
        return min(starts_ms, default=math.inf)

    @property
    def batch_rules_lead(self) -> bool:
        """Whether a batch rule makes the best start."""
        return self.start_ms < self.constructed[0].makespan_ms

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


def _of_one_mode(lane: _Lane, n_replicas: int, rules: Sequence[DynamicBatches]) -> Iterator[_Lane]:
    """The same samples in one mode each, where that is not hopeless.

    Plans of batch rules take their time, so they are made again only where they are good starts.
    """
    # Where a batch rule leads, constructed plans are far from what the search will find.
    give_up_ms = math.inf if lane.batch_rules_lead else HOPELESS_MODE * lane.start_ms
    for space in lane.space.modes_alone():
        constructed = space.construct(n_replicas, N_KEPT, N_REFINED, give_up_ms)
        alone = _Lane.of(space, constructed, n_replicas, rules if lane.batch_rules_lead else ())
        if alone.start_ms < give_up_ms:
            yield alone
