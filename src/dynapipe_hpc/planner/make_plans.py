"""The method, from the samples of an iteration to the plans of all ranks."""

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Self

from dynapipe_hpc.data.microbatch import MicroBatch
from dynapipe_hpc.data.sample import Sample
from dynapipe_hpc.plan.check import check_plans
from dynapipe_hpc.plan.cluster import Cluster
from dynapipe_hpc.plan.model_shape import ModelShape
from dynapipe_hpc.plan.rank_plan import RankPlan
from dynapipe_hpc.planner.authors import AuthorsPlanner
from dynapipe_hpc.planner.batch.batch_rule import BatchRule
from dynapipe_hpc.planner.batch.config import AuthorsConfig, DynamicConfig, RecomputeChoice
from dynapipe_hpc.planner.batch.dynamic import DynamicBatches
from dynapipe_hpc.planner.batch.microbatch_costs import microbatch_costs
from dynapipe_hpc.planner.batch.more_recompute import more_recompute
from dynapipe_hpc.planner.batch.replicas import balance_replicas
from dynapipe_hpc.planner.batch.rules import batch_rules
from dynapipe_hpc.planner.choice import Candidate, Choice
from dynapipe_hpc.planner.comm.rank_plans import rank_plans
from dynapipe_hpc.planner.config import PlannerConfig
from dynapipe_hpc.planner.cost.cost_model import CostModel, StageCosts
from dynapipe_hpc.planner.cost.from_config import CostSource, costs_of
from dynapipe_hpc.planner.recompute_choice import choose_one_mode
from dynapipe_hpc.planner.schedule.adaptive import adaptive, adaptive_split
from dynapipe_hpc.planner.schedule.config import may_split
from dynapipe_hpc.planner.schedule.lower_bound import lower_bound_ms
from dynapipe_hpc.planner.schedule.pipeline import refine_pipeline, schedule_priced
from dynapipe_hpc.planner.schedule.schedule_rule import InfeasibleScheduleError, ScheduleRule
from dynapipe_hpc.planner.schedule.update import least_update_ms
from dynapipe_hpc.planner.search.config import SearchConfig
from dynapipe_hpc.planner.search.find_plan import Found, find_plan
from dynapipe_hpc.planner.search.space import ConstructedPlan
from dynapipe_hpc.planner.search.spaces import search_spaces

NEAR = 1.001
"""Over the best plan, up to where other rules than the adaptive one may make up for it."""

REFINEMENT = 2
"""Passes of refinement at most, for each pass that a search took until it found a plan."""


@dataclass(frozen=True, slots=True)
class Planner:
    """Plans iterations; what stays the same from one to the next.

    Attributes:
        cost: Predicts time and memory of a micro-batch.
        cluster: What the plans are for.
        hidden_size: Width of the tensors between stages.
        first_decoder_stage: Of an encoder-decoder model, see `ModelShape`.
        batch_rules: Ways to form micro-batches, all of which are tried, in place of a search.
        schedule_rules: Ways to order passes, all of which are tried.
        search: How hard a plan is looked for; None takes the best of the batch rules as it is.
        recompute_choice: Whether micro-batches of an iteration may differ in their mode.
        authors: Plans in place of rules and search, as a baseline.
    """

    cost: CostModel
    cluster: Cluster
    hidden_size: int
    batch_rules: Sequence[BatchRule]
    schedule_rules: Sequence[ScheduleRule]
    search: SearchConfig | None = None
    recompute_choice: RecomputeChoice = "per_microbatch"
    authors: AuthorsPlanner | None = None
    first_decoder_stage: int | None = None

    @classmethod
    def of(
        cls,
        config: PlannerConfig,
        costs: CostSource,
        shape: ModelShape,
        cluster: Cluster,
        max_tokens: int,
    ) -> Self:
        """The planner that a configuration asks for.

        Args:
            config: Rules and search.
            costs: What `read_costs` makes of `config.cost`.
            shape: The model.
            cluster: What plans are for.
            max_tokens: Longest row, data.max_tokens.

        Raises:
            InputError: The costs are those of another model.
        """
        cost, link = costs_of(costs, shape, cluster)
        cluster = cluster.model_copy(update={"link": link})
        schedule_rules = config.schedule.chosen_rules
        plain = partial(
            cls,
            cost,
            cluster,
            shape.hidden_size,
            schedule_rules=schedule_rules,
            first_decoder_stage=shape.first_decoder_stage(cluster.n_stages),
        )
        match config.batch:
            case AuthorsConfig() as batch:
                return plain(batch_rules=[], authors=AuthorsPlanner.of(batch))
            case DynamicConfig() as batch:
                rules = batch_rules(batch, cluster.n_stages, max_tokens)
                return plain(rules, search=config.search, recompute_choice=batch.recompute_choice)
            case batch:
                return plain(batch_rules(batch, cluster.n_stages, max_tokens))

    def make_plans(self, iteration: int, samples: Sequence[Sample]) -> list[RankPlan]:
        """Plans one iteration: the best choice, written for every rank.

        Args:
            iteration: Its number.
            samples: Its global batch, in order of arrival.

        Returns:
            The plans of all ranks by rank, checked.

        Raises:
            InputError: As `choose`.
        """
        return self.write(iteration, self.choose(samples))

    def choose(self, samples: Sequence[Sample]) -> Choice:
        """Searches for micro-batches, or forms them by every rule, and schedules them.

        Args:
            samples: A global batch, in order of arrival.

        Raises:
            DoesNotFitError, NotMeasuredError: A sample or micro-batch cannot run.
            InfeasibleScheduleError: No candidate keeps within memory.
            TooFewMicroBatchesError: A replica would have nothing to do.
        """
        if self.authors:
            return self.authors.choose(samples, self.cost, self.cluster)
        if self.recompute_choice != "per_microbatch":
            return self._choose_one_mode(samples)
        if self.search is None or self.search.effort == 0:
            return Choice(tuple(self._candidates(self.batch_rules, samples)))
        return self._search(samples, self.search)

    def write(self, iteration: int, choice: Choice) -> list[RankPlan]:
        """The checked plans of all ranks by rank, for what was chosen.

        Raises:
            InfeasibleScheduleError: No candidate keeps within memory.
        """
        plans = rank_plans(
            iteration,
            choice.pipelines,
            self.cluster,
            self.cost,
            self.hidden_size,
            self.first_decoder_stage,
        )
        check_plans(plans)
        return plans

    def lower_bound_ms(self, choice: Choice, samples: Sequence[Sample]) -> float:
        """A time that no plan like the chosen one can beat, see `lower_bound.lower_bound_ms`.

        Args:
            choice: Of this planner, for the samples.
            samples: A global batch, in any order.
        """
        splits = may_split(self.schedule_rules)
        cost = self.cost.monotone
        return lower_bound_ms(choice.pipelines, samples, cost, self.cluster, may_split=splits)

    def _choose_one_mode(self, samples: Sequence[Sample]) -> Choice:
        def choose(cost: CostModel) -> Choice:
            return replace(self, cost=cost, recompute_choice="per_microbatch").choose(samples)

        only_first = self.recompute_choice == "first_feasible"
        return choose_one_mode(self.cost, choose, only_first=only_first)

    def _search(self, samples: Sequence[Sample], config: SearchConfig) -> Choice:
        """The best of the plans that are found, of those that less would have found, and of rules.

        Spaces in which no plan can be better than those before are not searched.
        """
        dynamic = [rule for rule in self.batch_rules if isinstance(rule, DynamicBatches)]
        others = [rule for rule in self.batch_rules if not isinstance(rule, DynamicBatches)]
        candidates = list(self._candidates(others, samples))
        constructed: Mapping[str, Sequence[ConstructedPlan]] = {}
        n_replicas, splits = self.cluster.n_replicas, may_split(self.schedule_rules)
        update_ms = least_update_ms(self.cost, may_split=splits)
        for spaces in search_spaces(samples, self.cost, self.cluster, split_backward=splits):
            best_ms = min((c.iteration_ms for c in candidates), default=math.inf) - update_ms
            if any(space.may_beat(best_ms, n_replicas) for space in spaces.values()):
                found = find_plan(spaces, n_replicas, config, dynamic)
                candidates += self._promising(found, config)
                constructed = constructed or found.constructed
        return Choice(tuple(candidates), constructed)

    def _promising(self, found: Found, config: SearchConfig) -> Iterator[Candidate]:
        """Schedules by every rule the plans that may become the best of all.

        They come in the order in which more and more effort finds them, and whether one is
        promising depends on those before it alone: so all candidates of less effort are among
        those of more.
        """
        plans = [*found.searched, *found.by_rules]
        best_ms = math.inf
        for plan in sorted(plans, key=lambda plan: (plan.effort, plan.makespan_ms)):
            if plan.makespan_ms < NEAR * best_ms or not self._may_be_adaptive:
                costs = plan.space.costs(plan.replicas)
                candidate = self._candidate(plan.way, plan.microbatches, costs)
                yield self._refined(candidate, plan.effort, config)
                best_ms = min(best_ms, plan.makespan_ms)

    @property
    def _may_be_adaptive(self) -> bool:
        return adaptive in self.schedule_rules or adaptive_split in self.schedule_rules

    def _refined(self, candidate: Candidate, effort: int, config: SearchConfig) -> Candidate:
        if isinstance(candidate.pipelines, InfeasibleScheduleError) or not self._may_be_adaptive:
            return candidate
        refine_one = partial(
            refine_pipeline,
            cost=self.cost,
            cluster=self.cluster,
            n_passes=min(config.refinement, REFINEMENT * effort) // len(candidate.pipelines),
            seed=config.seed,
        )
        return replace(candidate, pipelines=[refine_one(p) for p in candidate.pipelines])

    def _candidates(
        self, batch_rules: Sequence[BatchRule], samples: Sequence[Sample]
    ) -> Iterator[Candidate]:
        rules: dict[tuple[MicroBatch, ...], list[str]] = {}  # rules often agree
        for rule in batch_rules:
            formed = rule(samples, self.cost, self.cluster)
            for microbatches in more_recompute(formed, self.cost):
                rules.setdefault(microbatches, []).append(str(rule))
        for microbatches, agreeing in rules.items():
            replicas = balance_replicas(microbatches, self.cost, self.cluster.n_replicas)
            chosen = [[microbatches[i] for i in replica] for replica in replicas]
            costs = [microbatch_costs(replica, self.cost) for replica in chosen]
            yield self._candidate(" = ".join(dict.fromkeys(agreeing)), chosen, costs)

    def _candidate(
        self, way: str, replicas: Sequence[Sequence[MicroBatch]], costs: Sequence[StageCosts]
    ) -> Candidate:
        try:
            pipelines = [
                schedule_priced(microbatches, priced, self.cost, self.cluster, self.schedule_rules)
                for microbatches, priced in zip(replicas, costs, strict=True)
            ]
        except InfeasibleScheduleError as error:
            return Candidate(way, error, self.cost)
        return Candidate(way, pipelines, self.cost)
