"""The best plan that a search finds."""

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from dynapipe_hpc.data.microbatch import ExecutionMode, Layout
from dynapipe_hpc.data.sample import Sample
from dynapipe_hpc.plan.cluster import Cluster
from dynapipe_hpc.planner.batch.dynamic import DynamicBatches
from dynapipe_hpc.planner.batch.row_length import ROW_MULTIPLE
from dynapipe_hpc.planner.batch.slice_rule import SliceSetting
from dynapipe_hpc.planner.batch.windows.price_windows import PADDED_ONLY
from dynapipe_hpc.planner.choose.choice import Candidate, Choice, Infeasible
from dynapipe_hpc.planner.choose.found_ends import BestMakespans
from dynapipe_hpc.planner.choose.refine_slowest import refine_slowest
from dynapipe_hpc.planner.choose.schedule_replicas import ReplicaScheduler
from dynapipe_hpc.planner.cost.cost_model import CostModel
from dynapipe_hpc.planner.schedule.adaptive import adaptive, adaptive_split
from dynapipe_hpc.planner.schedule.may_split import may_split
from dynapipe_hpc.planner.schedule.schedule_rule import ScheduleRule
from dynapipe_hpc.planner.schedule.update import least_update_ms
from dynapipe_hpc.planner.search.config import SearchConfig
from dynapipe_hpc.planner.search.find_plan import NEAR, Found, find_plan
from dynapipe_hpc.planner.search.space import ConstructedPlan
from dynapipe_hpc.planner.search.spaces import search_spaces

REFINEMENT = 2
"""Greatest number of refinement passes per pass that the search took to find the plan."""
MAX_REFINEMENT = 200_000
"""Greatest number of passes to simulate while the schedule of one plan is refined."""
BEHIND = 1.1
"""Ratio to the best start of earlier searches above which a start is hopeless.

No measured start that was further behind led to the best plan (docs/decisions/0020 and 0065).
"""


@dataclass(frozen=True, slots=True)
class BestOfSearch:
    """Searches for micro-batches, their order, modes and replicas, and schedules what it finds.

    The plans that less effort would have found are among those that more effort compares.

    Attributes:
        batch_rules: Rules whose plans are improved as well.
        schedule_rules: Ways to order passes, all of which are tried.
        config: How hard a plan is looked for.
        cost: Predicts time and memory.
        cluster: What the plans are for.
        layouts: Layouts of micro-batches to choose from.
        token_multiple: Multiple that rows are padded to.
        slices: What long samples are cut into, if schedules may be adaptive: in a fixed order of
            passes slices cannot run.
    """

    batch_rules: Sequence[DynamicBatches]
    schedule_rules: Sequence[ScheduleRule]
    config: SearchConfig
    cost: CostModel
    cluster: Cluster
    layouts: Sequence[Layout] = PADDED_ONLY
    token_multiple: int = ROW_MULTIPLE
    slices: SliceSetting = "off"

    def choose(self, samples: Sequence[Sample]) -> Choice:
        """The plans that are found, see `Chooser`.

        Spaces in which no plan can be better than those before are not searched, nor those that
        begin far behind, if schedules may be adaptive: in a fixed order of passes, slow plans may
        be all that fit. Of both, single modes are not searched either.
        """
        tried: list[Candidate | Infeasible] = []
        constructed: Mapping[str, Sequence[ConstructedPlan]] = {}
        without_hope: list[set[ExecutionMode]] = []
        ends = BestMakespans()
        hopeless_ms = math.inf
        splits = may_split(self.schedule_rules)
        update_ms = least_update_ms(self.cost, may_split=splits)
        scheduler = ReplicaScheduler(self.cost, self.cluster, self.schedule_rules)
        for spaces in search_spaces(
            samples,
            self.cost,
            self.cluster,
            layouts=self.layouts,
            token_multiple=self.token_multiple,
            slices=self.slices if self._may_be_adaptive else "off",
            split_backward=splits,
        ):
            modes = {mode for space in spaces.values() for mode in space.windows.modes}
            if any(modes <= hopeless for hopeless in without_hope):
                continue
            best_ms = ends.least_ms - update_ms
            if any(space.may_beat(best_ms) for space in spaces.values()):
                best_plan = find_plan(spaces, self.config, self.batch_rules, hopeless_ms)
                if self._may_be_adaptive:
                    hopeless_ms = min(hopeless_ms, BEHIND * best_plan.start_ms)
                if not best_plan.searched:
                    without_hope.append(modes)
                tried += self._promising(best_plan, scheduler, ends)
                constructed = constructed or best_plan.constructed
            else:
                without_hope.append(modes)
        return Choice(tuple(tried), constructed)

    def _promising(
        self, best_plan: Found, scheduler: ReplicaScheduler, ends: BestMakespans
    ) -> Iterator[Candidate | Infeasible]:
        """Schedules by every rule the plans that may become the best of all, and refines these.

        They come in the order in which more and more effort finds them, and whether one is
        promising depends on those of no more effort alone: so all candidates of less effort are
        among those of more. What is much later than such a plan of any space is not refined.
        """
        plans = [*best_plan.searched, *best_plan.by_rules]
        best_ms = math.inf
        for plan in sorted(plans, key=lambda plan: (plan.effort, plan.makespan_ms)):
            if self._may_be_adaptive and plan.makespan_ms >= NEAR * best_ms:
                continue
            best_ms = min(best_ms, plan.makespan_ms)
            costs = plan.space.costs(plan.replicas)
            candidate = scheduler.schedule(plan.way, plan.microbatches, costs)
            if isinstance(candidate, Candidate):
                if ends.is_refinable(plan.effort, candidate.iteration_ms):
                    candidate = self._refined(candidate, plan.effort)
                ends.add(plan.effort, candidate.iteration_ms)
            yield candidate

    def _refined(self, candidate: Candidate, effort: int) -> Candidate:
        if not self._may_be_adaptive:
            return candidate
        n_passes = min(MAX_REFINEMENT, REFINEMENT * effort)
        return refine_slowest(candidate, self.cluster, n_passes, self.config.seed)

    @property
    def _may_be_adaptive(self) -> bool:
        return adaptive in self.schedule_rules or adaptive_split in self.schedule_rules
