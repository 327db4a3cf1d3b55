"""The best plan that a search finds."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import partial

import numpy as np

from dynapipe_hpc import _kernels
from dynapipe_hpc.data.microbatch import Layout, describe_modes
from dynapipe_hpc.data.sample import Sample
from dynapipe_hpc.plan.cluster import Cluster
from dynapipe_hpc.planner.batch.memory import activation_room_bytes
from dynapipe_hpc.planner.batch.order import TooFewMicroBatchesError, halved, orders
from dynapipe_hpc.planner.batch.price_windows import PADDED_ONLY, check_samples, price_windows
from dynapipe_hpc.planner.batch.row_length import ROW_MULTIPLE
from dynapipe_hpc.planner.batch.slice_rule import SliceRule, SliceSetting
from dynapipe_hpc.planner.batch.slice_windows import with_slices
from dynapipe_hpc.planner.batch.window_table import WindowTable
from dynapipe_hpc.planner.choose.choice import Choice, ReplicaScheduler
from dynapipe_hpc.planner.choose.config import SearchConfig
from dynapipe_hpc.planner.cost.cost_model import CostModel
from dynapipe_hpc.planner.schedule.rules import adaptive, adaptive_split, forward_only, may_split
from dynapipe_hpc.planner.schedule.schedule_rule import ScheduleRule, kernel_link
from dynapipe_hpc.planner.schedule.simulate import extra_reduce_ms


@dataclass(frozen=True, slots=True)
class BestOfSearch:
    """Searches for micro-batches, their order, modes and replicas, and schedules what it finds.

    A search with more effort also compares every plan that less effort would have found.

    `schedule_rules`: Ways to order passes, all of which are tried. `slices`: Slicing of long
    samples, if a rule can run slices; rules that fix the order of both passes cannot.
    """

    schedule_rules: Sequence[ScheduleRule]
    config: SearchConfig
    cost: CostModel
    cluster: Cluster
    layouts: Sequence[Layout] = PADDED_ONLY
    token_multiple: int = ROW_MULTIPLE
    slices: SliceSetting = "off"

    def choose(self, samples: Sequence[Sample]) -> Choice:
        """The plans that are found, see `Chooser`."""
        tables = list(
            search_spaces(
                samples,
                self.cost,
                self.cluster,
                layouts=self.layouts,
                token_multiple=self.token_multiple,
                slices=self.slices if self._may_slice else "off",
            )
        )
        scheduler = ReplicaScheduler(self.cost, self.cluster, self.schedule_rules)
        return Choice(
            tuple(
                scheduler.schedule(
                    f"local search, {plan.n_moves:,} moves, {describe_modes(table.modes)}",
                    [table.priced(replica) for replica in plan.replicas],
                )
                for table, plans in zip(tables, self._found_plans(tables), strict=True)
                for plan in plans
            )
        )

    def _found_plans(self, tables: Sequence[WindowTable]) -> list[list[_kernels.FoundPlan]]:
        slowness = self.cost.slowness
        n_replicas = self.cluster.n_replicas
        return _kernels.find_plans(
            [table.kernel_costs for table in tables],
            activation_room_bytes(self.cost, self.cluster),
            kernel_link(self.cluster.link),
            may_split(self.schedule_rules),
            extra_reduce_ms(self.cost),
            # All wait for the slowest stage of a replica.
            np.ones(n_replicas) if slowness is None else slowness.max(axis=1),
            self.config.effort,
            self.config.seed,
        )

    @property
    def _may_slice(self) -> bool:
        return any(rule in (adaptive, adaptive_split, forward_only) for rule in self.schedule_rules)


def search_spaces(
    samples: Sequence[Sample],
    cost: CostModel,
    cluster: Cluster,
    *,
    layouts: Sequence[Layout] = PADDED_ONLY,
    token_multiple: int = ROW_MULTIPLE,
    slices: SliceSetting = "off",
) -> Iterator[WindowTable]:
    """Windows of the samples in every order, in all layouts and modes of recomputation together.

    Packed rows also have an order of their own, in which windows of many samples are about equal:
    that matters where many replicas share the work, or where time rises in a step, as on a GPU that
    waits for launches. If some samples are worth slicing, windows in which they run as slices come
    first; these are the only windows if the samples cannot run uncut, or if `slices` is a number of
    tokens.

    `samples`: Samples of the iteration, in any order. Raises `DoesNotFitError` or
    `NotMeasuredError`: A sample cannot run. Raises `TooFewMicroBatchesError`: There are fewer
    samples than replicas.
    """
    if len(samples) < cluster.n_replicas:
        raise TooFewMicroBatchesError.from_counts(len(samples), cluster.n_replicas)
    may_slice = slices != "off"
    layouts = [Layout.PACKED] if samples[0].is_pair else layouts  # as all are then
    price = partial(
        price_windows,
        may_bundle=True,
        cost=cost,
        cluster=cluster,
        token_multiple=token_multiple,
        may_misfit=may_slice,
    )
    plainest, *others = orders(samples, cost.is_encoder_decoder)
    tables = [price(each, layouts=layouts) for each in (plainest, *others)]
    if sliced := with_slices(tables[0], cost, cluster, SliceRule(slices, token_multiple)):
        yield sliced
        if slices != "auto" or not tables[0].every_sample_runs:
            return
    elif may_slice:
        check_samples(tables[0], cost, cluster, token_multiple, may_slice=True)
    yield from tables
    if Layout.PACKED in layouts:
        packed = price(halved(plainest), layouts=[Layout.PACKED], may_misfit=True)
        if packed.every_sample_runs:
            yield packed
