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

    A micro-batch may keep `memory_share` of the memory that the model leaves on a stage; one
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
    sizes = _sizes(choice, cluster.n_replicas)
    if len(sizes) < cluster.n_replicas <= len(samples):
        sizes = _sizes(choice.of_at_most(len(samples) // cluster.n_replicas), cluster.n_replicas)
    ends, mode = np.cumsum(sizes), cost.recompute_modes[0]
    return [
        padded_microbatch(samples[end - n : end], mode) for n, end in zip(sizes, ends, strict=True)
    ]


def _sizes(choice: Candidates, n_replicas: int) -> list[int]:
    sizes, _, _ = _kernels.split_samples(
        choice.length_of_sample, choice.work_ms, choice.fill_ms, n_replicas
    )
    return sizes


def padded_microbatch(samples: Sequence[Sample], recompute: Recompute) -> MicroBatch:
    """One sample per row, as long as the first, which is the longest."""
    return MicroBatch(
        rows=tuple((sample.sample_id,) for sample in samples),
        row_tokens=padded(samples[0].tokens),
        recompute=recompute,
    )
