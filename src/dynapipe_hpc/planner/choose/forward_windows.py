"""The plan of an evaluation: forward passes of windows of the samples."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from dynapipe_hpc.data.microbatch import Layout
from dynapipe_hpc.data.sample import Sample
from dynapipe_hpc.plan.cluster import Cluster, Link
from dynapipe_hpc.planner.batch.order import balance, orders
from dynapipe_hpc.planner.batch.price_windows import check_samples, price_windows
from dynapipe_hpc.planner.batch.slice_rule import SliceRule
from dynapipe_hpc.planner.batch.slice_windows import with_slices
from dynapipe_hpc.planner.batch.window_table import WindowTable
from dynapipe_hpc.planner.choose.choice import Choice, ReplicaScheduler
from dynapipe_hpc.planner.cost.cost_model import CostModel, FloatArray, StageCosts
from dynapipe_hpc.planner.schedule.schedule_rule import INSTANT, PassKind, Schedule


@dataclass(frozen=True, slots=True)
class ForwardWindows:
    """Splits sorted samples to minimise the predicted time of an evaluation, see `split_samples`.

    A micro-batch keeps nothing, so one at a time may take all memory. Where samples do not fit
    uncut, long ones run as slices if they may. Preference pairs lie in packed rows only.
    """

    cost: CostModel
    cluster: Cluster
    layouts: Sequence[Layout]
    slice_rule: SliceRule  # rule by which samples are cut where some do not fit uncut

    def choose(self, samples: Sequence[Sample]) -> Choice:
        """The only plan, see `Chooser`."""
        ordered, *_ = orders(samples, self.cost.is_encoder_decoder)
        table = self._windows(ordered)
        windows = table.split(self.cluster.n_replicas)
        work_ms = table.costs.take(table.cells_of(windows).astype(np.int64)).bottleneck_ms
        replicas = [windows[places] for places in balance(work_ms, self.cluster.n_replicas)]
        scheduler = ReplicaScheduler(self.cost, self.cluster, [forward_only])
        priced = [table.priced(replica) for replica in replicas]
        return Choice((scheduler.schedule("forward passes", priced),))

    def _windows(self, ordered: Sequence[Sample]) -> WindowTable:
        cost, cluster, rule = self.cost, self.cluster, self.slice_rule
        of_pairs = any(sample.is_pair for sample in ordered)
        table = price_windows(
            ordered,
            cost,
            cluster,
            (Layout.PACKED,) if of_pairs else self.layouts,
            token_multiple=rule.token_multiple,
            may_misfit=rule.setting != "off",
            may_bundle=True,
        )
        if table.runs_alone[:, table.row_of_sample].any(axis=0).all():
            return table
        sliced = with_slices(table, cost, cluster, rule)
        if sliced is None:
            check_samples(table, cost, cluster, rule.token_multiple, may_slice=True)
        return sliced or table


def forward_only(costs: StageCosts, _limit_bytes: FloatArray, _link: Link = INSTANT) -> Schedule:
    """Forward passes of all micro-batches on every stage, in the order in which they enter."""
    codes = len(PassKind) * np.arange(costs.n_microbatches, dtype=np.int32) + PassKind.FORWARD
    return Schedule(np.tile(codes.astype(np.int32), (costs.n_stages, 1)))
