"""Packed micro-batches of any samples: these lie end to end in one row, or one on each side."""

from collections.abc import Sequence

from dynapipe_hpc.data.microbatch import MicroBatch
from dynapipe_hpc.data.sample import Sample
from dynapipe_hpc.plan.cluster import Cluster
from dynapipe_hpc.planner.batch.check_fit import FEWER_TOKENS, check_fit
from dynapipe_hpc.planner.batch.packed_row import packed_microbatch
from dynapipe_hpc.planner.batch.row_length import document_lengths
from dynapipe_hpc.planner.cost.cost_model import CostModel, IntArray

Groups = Sequence[Sequence[int]]
"""Per micro-batch the indices of its samples, in the order in which they lie in its row."""


def packed_tokens(samples: Sequence[Sample], cost: CostModel) -> IntArray:
    """Positions that samples take in packed rows, on both sides together, shape (n_samples,)."""
    inputs, targets = document_lengths(samples, cost.is_encoder_decoder)
    return inputs + targets


def packed_replicas(
    samples: Sequence[Sample], replicas: Sequence[Groups], cost: CostModel, cluster: Cluster
) -> list[list[MicroBatch]]:
    """Packed micro-batches of all replicas.

    Args:
        samples: Samples of all replicas.
        replicas: Groups of every replica, in the order in which they enter the pipeline.
        cost: Cost model, of whose modes the first is used.
        cluster: The cluster that runs them.

    Raises:
        DoesNotFitError, NotMeasuredError: A micro-batch does not fit into memory.
    """
    mode = cost.recompute_modes[0]
    rows: list[list[MicroBatch]] = [
        [
            packed_microbatch([samples[i] for i in group], mode, cost.is_encoder_decoder)
            for group in groups
        ]
        for groups in replicas
    ]
    check_fit([m for microbatches in rows for m in microbatches], cost, cluster, FEWER_TOKENS)
    return rows
