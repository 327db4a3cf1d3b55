"""Cuts ordered samples into micro-batches."""

from collections.abc import Sequence

import numpy as np

from dynapipe_hpc import _kernels
from dynapipe_hpc.data.microbatch import MicroBatch, Recompute
from dynapipe_hpc.data.sample import Sample
from dynapipe_hpc.plan.cluster import Cluster
from dynapipe_hpc.planner.batch.candidates import Candidates, candidates
from dynapipe_hpc.planner.batch.row_length import padded
from dynapipe_hpc.planner.cost.cost_model import CostModel


def split_samples(
    samples: Sequence[Sample], cost: CostModel, cluster: Cluster, memory_share: float = 1.0
) -> list[MicroBatch]:
    """Cuts samples into the consecutive padded micro-batches that finish soonest.

    Minimises the predicted iteration time

        max_i fill(M_i) + (1 / n_replicas) * sum_i bottleneck(M_i)        [ms]

    exactly, where `bottleneck` is forward and backward on the micro-batch's slowest stage and
    `fill` is forward and backward on all its other stages: the pipeline fills and drains at
    the pace of its slowest micro-batch, and in between its slowest stage is busy with all of
    them. The slowest stage is taken per micro-batch. The sum is then at least the work of any
    one stage, and equal to it where one stage is slowest throughout, as in most pipelines.
    With equal stages this is the paper's equation 1.

    Every micro-batch is in the mode of recomputation that takes it the least time of those that
    it may use. It may keep `memory_share` of the memory that the model leaves on a stage; one
    sample alone may keep all of it.

    Args:
        samples: Longest first, at least one.
        cost: Predicts time and memory of a candidate micro-batch.
        cluster: Its replicas share the work, its device memory limits a micro-batch.
        memory_share: In (0, 1]; 1 / n_stages suits schedules that keep as many micro-batches
            at a time as there are stages.

    Returns:
        Micro-batches that hold every sample once, in the given order. Where that would be fewer
        than replicas, the best of at most len(samples) / n_replicas samples each.

    Raises:
        DoesNotFitError: A sample alone needs more memory than a stage has.
        NotMeasuredError: The cost model does not know what a sample alone costs.

    Source:
        Jiang et al., "DynaPipe", EuroSys 2024, doi:10.1145/3627703.3629585, equations 1 and 2.
    """
    choice = candidates(samples, cost, cluster, memory_share)
    windows = _windows(choice, cluster.n_replicas)
    if len(windows) < cluster.n_replicas <= len(samples):
        few = choice.of_at_most(len(samples) // cluster.n_replicas)
        windows = _windows(few, cluster.n_replicas)
    return [
        padded_microbatch(samples[first : first + size], cost.recompute_modes[mode])
        for first, size, mode in windows
    ]


def _windows(choice: Candidates, n_replicas: int) -> list[tuple[int, int, int]]:
    """First sample, number of samples and mode of every micro-batch."""
    work_ms = choice.work_ms
    cheapest = work_ms.argmin(axis=0)
    least_ms, fill_ms = (
        np.take_along_axis(table, cheapest[np.newaxis], axis=0)[0]
        for table in (work_ms, choice.fill_ms)
    )
    length = choice.row_of_sample
    sizes, _, _ = _kernels.split_samples(length, least_ms, fill_ms, n_replicas)
    firsts = np.cumsum([0, *sizes[:-1]])
    modes = cheapest[length[firsts], np.array(sizes) - 1]
    return list(zip(firsts.tolist(), sizes, modes.tolist(), strict=True))


def padded_microbatch(samples: Sequence[Sample], recompute: Recompute) -> MicroBatch:
    """One sample per row, as long as the first, which is the longest."""
    return MicroBatch(
        rows=tuple((sample.sample_id,) for sample in samples),
        row_tokens=padded(samples[0].tokens),
        recompute=recompute,
    )
