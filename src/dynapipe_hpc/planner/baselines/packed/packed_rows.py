"""Packed micro-batches of a baseline: samples end to end in one row each."""

from collections.abc import Sequence

from dynapipe_hpc.data.errors import InputError
from dynapipe_hpc.data.microbatch import MicroBatch
from dynapipe_hpc.data.sample import Sample
from dynapipe_hpc.plan.cluster import Cluster
from dynapipe_hpc.planner.baselines.check_fit import FEWER_TOKENS, check_fit
from dynapipe_hpc.planner.batch.packed_row import packed_microbatch
from dynapipe_hpc.planner.batch.row_length import positions, tokens_of
from dynapipe_hpc.planner.cost.cost_model import CostModel, IntArray

Groups = Sequence[Sequence[int]]
"""Per micro-batch the indices of its samples, in the order in which they lie in its row."""


def check_decoder_only(rule: str, cost: CostModel) -> None:
    """Checks that samples take one row each, so that they can be packed.

    Raises:
        InputError: Costs are those of an encoder-decoder model.
    """
    if cost.is_encoder_decoder:
        raise InputError(
            f"planner.batch.rule is {rule!r}, which packs the samples of decoder-only models, but "
            "the model is an encoder-decoder model; choose 'dynamic', 'token_budget' or "
            "'dense_packing', or another model.family"
        )


def packed_tokens(samples: Sequence[Sample]) -> IntArray:
    """Positions that samples of a decoder-only model take in a row, shape (n_samples,)."""
    inputs, targets = (tokens_of(samples, f"{side}_tokens") for side in ("input", "target"))
    return positions(inputs, targets, is_encoder_decoder=False).row_tokens


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
    found = [
        [packed_microbatch([samples[i] for i in group], mode) for group in groups]
        for groups in replicas
    ]
    check_fit([m for microbatches in found for m in microbatches], cost, cluster, FEWER_TOKENS)
    return found
