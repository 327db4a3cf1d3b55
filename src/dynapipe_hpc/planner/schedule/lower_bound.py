"""How short an iteration could be at best."""

from collections.abc import Sequence

import numpy as np

from dynapipe_hpc import _kernels
from dynapipe_hpc.data.sample import Sample
from dynapipe_hpc.plan.cluster import Cluster, Link
from dynapipe_hpc.planner.batch.candidates import candidates
from dynapipe_hpc.planner.batch.microbatch_costs import microbatch_costs
from dynapipe_hpc.planner.batch.order import order_samples
from dynapipe_hpc.planner.batch.split import padded_microbatch
from dynapipe_hpc.planner.cost.cost_model import CostModel, FloatArray, StageCosts
from dynapipe_hpc.planner.schedule.pipeline import Pipeline


def lower_bound_ms(
    pipelines: Sequence[Pipeline], samples: Sequence[Sample], cost: CostModel, cluster: Cluster
) -> float:
    """A time that no plan of the same kind can beat, the update at its end included.

    Of the same kind are all plans with padded micro-batches, if those of the plan are padded;
    else all that have its micro-batches on the same replicas.

    Args:
        pipelines: The plan, one per replica.
        samples: What it runs, in any order.
        cost: What it was made with.
        cluster: What it was made for.
    """
    if all(len(row) == 1 for p in pipelines for m in p.microbatches for row in m.rows):
        return padded_bound_ms(samples, cost, cluster) + cost.update_ms
    slowest_ms = max(replica_bound_ms(pipeline.costs, cluster.link) for pipeline in pipelines)
    return slowest_ms + cost.update_ms


def replica_bound_ms(costs: StageCosts, link: Link) -> float:
    """A time that no schedule of a replica's micro-batches can beat.

    A stage cannot begin before some micro-batch has come to it through all stages before it,
    then has the passes of all micro-batches to run, and after its last one, a backward pass,
    that micro-batch still has to go back through the stages before it. Nor can the iteration
    be shorter than the way of any one micro-batch there and back. Memory is ignored, and so is
    waiting of transfers for each other.

    Args:
        costs: Of the replica's micro-batches, at least one.
        link: Between neighbouring stages.
    """
    around_ms = _head_ms(costs, link).min(axis=0) + _tail_ms(costs, link).min(axis=0)
    busiest_ms = (around_ms + costs.work_ms.sum(axis=0)).max()
    return float(max(busiest_ms, _there_and_back_ms(costs, link).max()))


def padded_bound_ms(samples: Sequence[Sample], cost: CostModel, cluster: Cluster) -> float:
    """A time that no plan of padded micro-batches can beat.

    It holds for every partition of the samples, spread over replicas and scheduled in any way.
    Per stage, the sum over replicas of `replica_bound_ms` is at least the least work that any
    partition of the samples gives the stage, and the slowest replica takes at least the mean;
    before and after it, the least head and tail are those of the shortest sample alone. The
    longest sample still has to go there and back. All of this holds because a micro-batch with
    more rows or longer rows never costs less.

    For the same reason the least work is that of a partition into windows of the samples by
    length: give the micro-batches of any partition, longest rows first, as many samples as
    before, but now the longest that are left. No row grows: those before the i-th have as many
    samples as before, so they had to leave one at least as long as its first to it or to a later
    one, whose rows were not longer than its own.

    Args:
        samples: Of one iteration, at least one.
        cost: Predicts time and memory.
        cluster: Its replicas share the work; a micro-batch has to fit its memory alone.

    Raises:
        DoesNotFitError, NotMeasuredError: A sample cannot run.
    """
    ordered = order_samples(samples)
    alone, link = _least_costs([ordered[0], ordered[-1]], cost), cluster.link
    around_ms = (_head_ms(alone, link) + _tail_ms(alone, link))[-1]
    work_ms = _least_work_ms(ordered, cost, cluster) / cluster.n_replicas
    return float(max((around_ms + work_ms).max(), _there_and_back_ms(alone, link)[0]))


def _least_work_ms(ordered: Sequence[Sample], cost: CostModel, cluster: Cluster) -> FloatArray:
    """Of all cuts of the samples, the least work of each stage by itself, shape (n_stages,)."""
    choice = candidates(ordered, cost, cluster)
    tables = (choice.least(stage_ms) for stage_ms in choice.costs.work_ms.T)
    nothing = choice.least(np.zeros(choice.costs.n_microbatches))
    cuts = (_kernels.split_samples(choice.row_of_sample, t, nothing, 1) for t in tables)
    return np.array([work_ms for _, work_ms, _ in cuts])


def _least_costs(samples: Sequence[Sample], cost: CostModel) -> StageCosts:
    """Of samples alone, everything in the mode in which it is least."""
    of_mode = [
        microbatch_costs([padded_microbatch([sample], mode) for sample in samples], cost)
        for mode in cost.recompute_modes
    ]
    return StageCosts(np.min([costs.table for costs in of_mode], axis=0))


def _head_ms(costs: StageCosts, link: Link) -> FloatArray:
    """Until a micro-batch can have come to a stage, shape (n_microbatches, n_stages)."""
    return _before(costs.forward_ms + _transfer_ms(costs, link))


def _tail_ms(costs: StageCosts, link: Link) -> FloatArray:
    """From a micro-batch's last pass on a stage to its end, shape (n_microbatches, n_stages)."""
    return _before(costs.backward_ms + _transfer_ms(costs, link))


def _there_and_back_ms(costs: StageCosts, link: Link) -> FloatArray:
    """From the first pass of a micro-batch to its last, shape (n_microbatches,)."""
    around_ms = _head_ms(costs, link) + _tail_ms(costs, link)
    return np.asarray((around_ms + costs.work_ms)[:, -1])


def _before(stages: FloatArray) -> FloatArray:
    """Per stage, the sum over the stages before it."""
    sums = np.cumsum(stages, axis=1)
    return np.concatenate([np.zeros_like(sums[:, :1]), sums[:, :-1]], axis=1)


def _transfer_ms(costs: StageCosts, link: Link) -> FloatArray:
    return link.latency_ms + costs.boundary_bytes / link.bytes_per_ms
