"""Predicting tokens with the vectors that they are read as."""

import math

from torch import Tensor
from torch.nn import functional

from dynapipe_hpc.models.sharded_vocabulary import cross_entropies, without_padding
from dynapipe_hpc.models.shards import Shards, entered


def tied_loss(
    hidden: Tensor,
    vectors: Tensor,
    labels: Tensor,
    weights: Tensor,
    shards: Shards,
    vocab_size: int,
) -> Tensor:
    """The weighted sum of cross entropies, a scalar.

    Logits are products with the vectors, which start with numbers of about one: divided by the
    square root of the width.

    Args:
        hidden: Shape (rows, tokens, width), the same on all shards.
        vectors: This shard's, shape (ids of a shard, width).
        labels: Token ids, (rows, tokens).
        weights: Of each prediction, as `labels`.
        shards: The shards of the stage.
        vocab_size: Number of ids of all shards.
    """
    scaled = entered(hidden, shards) / math.sqrt(hidden.shape[-1])
    logits = functional.linear(scaled, vectors).flatten(0, 1)
    logits = without_padding(logits, vocab_size, shards)
    losses = cross_entropies(logits, labels.flatten(), shards)
    return (losses * weights.flatten().to(losses.dtype)).sum()
