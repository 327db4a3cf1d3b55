"""Needs of the parts of a model, from their sizes alone."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from dynapipe_hpc.architecture.amount import NOTHING, Amount, total
from dynapipe_hpc.architecture.part import EMBEDDING, Part, Side, Work
from dynapipe_hpc.data.microbatch import Recompute


@dataclass(frozen=True, slots=True)
class LayerEstimate:
    """Needs of one part of a kind, on one shard.

    Attributes:
        side: Tokens that pass through it.
        window: Number of tokens that attention with a window sees, see `Part.window`.
        work: Operations of its forward pass.
        deferred_flops: Operations of what W computes gradients for, see `Part.deferred_work`.
        read_weight_bytes: Weights that every pass reads.
        deferred_weight_bytes: Gradients of weights that W computes.
        moved_bytes: Activations that the forward pass writes and reads.
        summed_bytes: Tensors that each direction adds up over shards.
        stored_bytes: Activations kept for the backward pass.
        transient_bytes: Activations on top while the forward pass runs.
        transient_most_bytes: Limit of these.
        passing_bytes: Activations on top that it makes and does not keep, of one block at a time.
        mask_bytes: Masks of dropout on top while a pass runs, up to `MAX_MASK_BYTES`.
        gradient_bytes: Gradient of the largest weight, before it is added to those of others.
        term_bytes: Gradient that each layer computes for what its side shares.
        sum_bytes: Sum of these gradients.
        repeated_flops: Operations of the forward pass that the backward pass computes again.
        repeated_bytes: What it keeps of that until it needs it.
    """

    side: Side
    window: float
    work: Work
    deferred_flops: Amount
    read_weight_bytes: int
    deferred_weight_bytes: int
    moved_bytes: Amount
    summed_bytes: Amount
    stored_bytes: Amount
    transient_bytes: Amount
    transient_most_bytes: float
    passing_bytes: Sequence[Amount]
    mask_bytes: Amount
    gradient_bytes: int
    term_bytes: Amount
    sum_bytes: Amount
    repeated_flops: Amount
    repeated_bytes: Amount


def layer_estimates(
    parts: Mapping[str, Part],
    hidden_size: int,
    element_bytes: int,
    *,
    n_shards: int = 1,
    recompute: Recompute = Recompute.NONE,
) -> dict[str, LayerEstimate]:
    """Estimates by kind of part.

    Args:
        parts: Parts of a model on one shard, by kind.
        hidden_size: Width of the residual stream.
        element_bytes: Size of one number of an activation or weight.
        n_shards: Ranks over which heads, inner widths and the vocabulary are cut.
        recompute: What backward passes compute again.
    """
    token_bytes = element_bytes * hidden_size
    estimates = {}
    for kind, part in parts.items():
        transient = part.transient_bytes(element_bytes)
        n_read = 0 if kind == EMBEDDING else part.parameters  # few rows are looked up
        deferred = part.deferred_work(recompute)
        n_deferred = (deferred.per_own + deferred.per_source) // 2  # a product and a sum for each
        estimates[kind] = LayerEstimate(
            side=part.side,
            window=part.window,
            work=part.work,
            deferred_flops=deferred,
            read_weight_bytes=n_read * element_bytes,
            deferred_weight_bytes=n_deferred * element_bytes,
            moved_bytes=total(part.kept_bytes(Recompute.NONE, element_bytes), transient),
            summed_bytes=Amount(part.n_sums * token_bytes) if n_shards > 1 else NOTHING,
            stored_bytes=part.kept_bytes(recompute, element_bytes),
            transient_bytes=transient,
            transient_most_bytes=part.transient_most_bytes(element_bytes),
            passing_bytes=part.passing_bytes(recompute, element_bytes),
            mask_bytes=part.mask_bytes,
            gradient_bytes=part.largest_weight * element_bytes,
            term_bytes=part.gradient_term.times(element_bytes),
            sum_bytes=part.gradient_sum.times(element_bytes),
            repeated_flops=part.recomputed_work(recompute),
            repeated_bytes=part.recomputed_bytes(recompute, element_bytes),
        )
    return estimates
