"""The vectors of tokens, at both ends of a model."""

import math

import torch
from torch import Tensor, nn
from torch.nn import functional

from dynapipe_hpc.plan.model_shape import ModelShape


class Vocabulary(nn.Module):
    """A learned vector per token: what a layer reads of it, and what predicts it."""

    def __init__(self, shape: ModelShape) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(shape.vocab_size, shape.hidden_size))

    def forward(self, tokens: Tensor) -> Tensor:
        """Maps token ids (rows, tokens) to (rows, tokens, width)."""
        return functional.embedding(tokens, self.weight)

    def loss(self, hidden: Tensor, labels: Tensor, weights: Tensor) -> Tensor:
        """Maps (rows, tokens, width) to the weighted sum of cross entropies, a scalar.

        Logits are products with the vectors, which start with numbers of about one: divided by
        the square root of the width.
        """
        scaled = hidden / math.sqrt(hidden.shape[-1])
        logits = functional.linear(scaled, self.weight).flatten(0, 1)
        exact = logits.to(torch.promote_types(logits.dtype, torch.float32))
        losses = functional.cross_entropy(exact, labels.flatten(), reduction="none")
        return (losses * weights.flatten().to(losses.dtype)).sum()
