"""How short an iteration could be at best."""

from collections.abc import Sequence
from dataclasses import astuple, dataclass, replace
from typing import Self

import numpy as np

from dynapipe_hpc import _kernels
from dynapipe_hpc.data.sample import Sample
from dynapipe_hpc.plan.cluster import Cluster, Link
from dynapipe_hpc.planner.batch.candidates import candidates
from dynapipe_hpc.planner.batch.order import order_pairs, order_samples
from dynapipe_hpc.planner.batch.row_length import row_lengths
from dynapipe_hpc.planner.cost.cost_model import CostModel, FloatArray, Shapes, StageCosts
from dynapipe_hpc.planner.schedule.pipeline import Pipeline
from dynapipe_hpc.planner.schedule.update import least_update_ms


def lower_bound_ms(
    pipelines: Sequence[Pipeline],
    samples: Sequence[Sample],
    cost: CostModel,
    cluster: Cluster,
    *,
    may_split: bool,
) -> float:
    """A time that no plan of the same kind can beat, the update at its end included.

    Of the same kind are all plans with padded micro-batches, if those of the plan are padded;
    else all that have its micro-batches on the same replicas.

    Args:
        pipelines: The plan, one per replica.
        samples: What it runs, in any order.
        cost: What it was made with.
        cluster: What it was made for.
        may_split: Whether plans of this kind may split backward passes.
    """
    update_ms = least_update_ms(cost, may_split=may_split)
    if all(len(row) == 1 for p in pipelines for m in p.microbatches for row in m.rows):
        return padded_bound_ms(samples, cost, cluster, may_split=may_split) + update_ms
    slowest_ms = max(
        replica_bound_ms(pipeline.costs, cluster.link, may_split=may_split)
        for pipeline in pipelines
    )
    return slowest_ms + update_ms


def replica_bound_ms(costs: StageCosts, link: Link, *, may_split: bool) -> float:
    """A time that no schedule of a replica's micro-batches can beat.

    A stage cannot begin before some micro-batch has come to it through all stages before it.
    Then it has the F and B of all micro-batches to run, and after its last B, that micro-batch
    still has to go back through the stages before it, and its W to run on one of them. Or, as W
    may come last, it has all work to run and nothing behind it. Nor can the iteration be shorter
    than the way of any one micro-batch there and back. Memory is ignored, and so is waiting of
    transfers for each other.

    Args:
        costs: Of the replica's micro-batches, at least one.
        link: Between neighbouring stages.
        may_split: Whether backward passes may be split; if not, there is no W.
    """
    ways = _Ways.of(costs, link, may_split=may_split)
    head_ms, tail_ms = ways.head_ms.min(axis=0), ways.tail_ms.min(axis=0)
    through_ms, work_ms = ways.through_ms.sum(axis=0), ways.work_ms.sum(axis=0)
    busiest_ms = _busiest_ms(head_ms, tail_ms, through_ms, work_ms)
    return max(busiest_ms, float(ways.there_and_back_ms.max()))


def padded_bound_ms(
    samples: Sequence[Sample], cost: CostModel, cluster: Cluster, *, may_split: bool
) -> float:
    """A time that no plan of padded micro-batches can beat.

    It holds for every partition of the samples, spread over replicas and scheduled in any way.
    Per stage, the sum over replicas of `replica_bound_ms` is at least the least work that any
    partition of the samples gives the stage, and the slowest replica takes at least the mean;
    before and after it, the least head and tail are those of the shortest sample alone. Every
    sample still has to go there and back. All of this holds because a micro-batch with more
    rows or longer rows never costs less.

    For the same reason the least work is that of a partition into windows of the samples by
    length: give the micro-batches of any partition, longest rows first, as many samples as
    before, but now the longest that are left. No row grows: those before the i-th have as many
    samples as before, so they had to leave one at least as long as its first to it or to a later
    one, whose rows were not longer than its own. Where inputs and targets are padded on their
    own, this holds for each side while all samples are as short as the shortest on the other.

    Args:
        samples: Of one iteration, at least one.
        cost: Predicts time and memory.
        cluster: Its replicas share the work; a micro-batch has to fit its memory alone.
        may_split: Whether backward passes may be split.

    Raises:
        DoesNotFitError, NotMeasuredError: A sample cannot run.
    """
    sides = _sides(samples, cost.is_encoder_decoder)
    of_side = [_least_work_ms(side, cost, cluster, may_split=may_split) for side in sides]
    through_ms, work_ms = np.max(of_side, axis=0) / cluster.n_replicas
    alone = _ways_alone(samples, cost, cluster.link, may_split=may_split)
    busiest_ms = _busiest_ms(alone.head_ms[0], alone.tail_ms[0], through_ms, work_ms)
    return max(busiest_ms, float(alone.there_and_back_ms.max()))


def _sides(samples: Sequence[Sample], is_encoder_decoder: bool) -> list[list[Sample]]:
    """The samples longest first; if both sides are padded, once by each, the other shortest."""
    if not is_encoder_decoder:
        return [order_samples(samples)]
    inputs = min(sample.input_tokens for sample in samples)
    targets = min(sample.target_tokens for sample in samples)
    return [
        order_pairs([replace(sample, target_tokens=targets) for sample in samples]),
        order_pairs([replace(sample, input_tokens=inputs) for sample in samples]),
    ]


def _busiest_ms(
    head_ms: FloatArray, tail_ms: FloatArray, through_ms: FloatArray, work_ms: FloatArray
) -> float:
    """The bound by the busiest stage; all arrays of shape (n_stages,)."""
    return float((head_ms + np.maximum(through_ms + tail_ms, work_ms)).max())


def _least_work_ms(
    ordered: Sequence[Sample], cost: CostModel, cluster: Cluster, *, may_split: bool
) -> FloatArray:
    """Of all cuts, the least that a stage has to do through its last B, and the least in all.

    Returns:
        Shape (2, n_stages), each stage by itself.
    """
    choice = candidates(ordered, cost, cluster)
    ways = _Ways.of(choice.costs, cluster.link, may_split=may_split)
    nothing = choice.least(np.zeros(choice.costs.n_microbatches))

    def least_ms(of_one_ms: FloatArray) -> float:
        table = choice.least(of_one_ms)
        return _kernels.split_samples(choice.row_of_sample, table, nothing, 1)[1]

    through_ms = [least_ms(stage_ms) for stage_ms in ways.through_ms.T]
    if not may_split:
        return np.array([through_ms, through_ms])
    return np.array([through_ms, [least_ms(stage_ms) for stage_ms in ways.work_ms.T]])


def _ways_alone(
    samples: Sequence[Sample], cost: CostModel, link: Link, *, may_split: bool
) -> "_Ways":
    """Of the shortest on every side, then of each sample; all in the mode in which it is least."""
    rows = np.stack(row_lengths(samples, cost.is_encoder_decoder), axis=1)
    rows = np.concatenate([rows.min(axis=0, keepdims=True), np.unique(rows, axis=0)])
    shapes = Shapes(np.ones(len(rows), np.int64), *rows.T)
    of_mode = [
        _Ways.of(cost.stage_costs(shapes, mode), link, may_split=may_split)
        for mode in cost.recompute_modes
    ]
    return _Ways(*(np.min(column, axis=0) for column in zip(*map(astuple, of_mode), strict=True)))


@dataclass(frozen=True, slots=True, eq=False)
class _Ways:
    """Micro-batches on their way through the stages. Arrays (n_microbatches, n_stages).

    Attributes:
        forward_ms: Time of F.
        gradient_ms: Time of B.
        weight_ms: Time of W; 0 if backward passes are whole.
        transfer_ms: From a stage to the next one, and from there back.
    """

    forward_ms: FloatArray
    gradient_ms: FloatArray
    weight_ms: FloatArray
    transfer_ms: FloatArray

    @classmethod
    def of(cls, costs: StageCosts, link: Link, *, may_split: bool) -> Self:
        transfer_ms = link.latency_ms + costs.boundary_bytes / link.bytes_per_ms
        weight_ms = costs.weight_ms if may_split else np.zeros_like(costs.weight_ms)
        gradient_ms = np.full_like(weight_ms, np.inf)
        known = np.isfinite(weight_ms)
        np.subtract(costs.backward_ms, weight_ms, out=gradient_ms, where=known)
        return cls(costs.forward_ms, gradient_ms, weight_ms, transfer_ms)

    @property
    def through_ms(self) -> FloatArray:
        """What a stage has to do before its last B has ended."""
        return self.forward_ms + self.gradient_ms

    @property
    def work_ms(self) -> FloatArray:
        """All that a stage has to do."""
        return self.through_ms + self.weight_ms

    @property
    def head_ms(self) -> FloatArray:
        """Until a micro-batch can have come to a stage."""
        return _before(self.forward_ms + self.transfer_ms)

    @property
    def tail_ms(self) -> FloatArray:
        """From a micro-batch's B on a stage to its end, by its longest way: W here or before."""
        back_ms = _before(self.gradient_ms + self.transfer_ms)
        return back_ms + np.maximum.accumulate(self.weight_ms - back_ms, axis=1)

    @property
    def there_and_back_ms(self) -> FloatArray:
        """From the first pass of a micro-batch to its last, shape (n_microbatches,)."""
        return np.asarray((self.head_ms + self.through_ms + self.tail_ms)[:, -1])


def _before(stages: FloatArray) -> FloatArray:
    """Per stage, the sum over the stages before it."""
    sums = np.cumsum(stages, axis=1)
    return np.concatenate([np.zeros_like(sums[:, :1]), sums[:, :-1]], axis=1)
