"""Loss of tokens that are predicted with the vectors that they are read as."""

import math

from torch import Tensor

from dynapipe_hpc.models.linear_cross_entropy import Vocabulary, linear_cross_entropy
from dynapipe_hpc.models.sharding.residual_stream import ResidualStream


def tied_loss(
    hidden: Tensor,
    stream: ResidualStream,
    vectors: Tensor,
    labels: Tensor,
    weights: Tensor,
    vocabulary: Vocabulary,
) -> Tensor:
    """Weighted sum of cross entropies, a scalar; see `linear_cross_entropy`.

    Logits are products of a tensor of the stream with the vectors, which start with numbers of
    about one: divided by the square root of the width.
    """
    scaled = stream.gather(hidden) / math.sqrt(hidden.shape[-1])
    return linear_cross_entropy(scaled, vectors, labels, weights, vocabulary)
