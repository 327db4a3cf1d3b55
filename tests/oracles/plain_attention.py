"""Attention in plain operations of torch, query by query, with the softmax written out."""

import torch
from torch import Tensor


def plain_attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    bias: Tensor,
    *,
    scale: float | None = None,
    cap: float | None = None,
) -> Tensor:
    """Attended values of one document, of the shape of `query`: (tokens, heads, head size).

    `bias`: Numbers added to scores, shape (tokens, source tokens). `cap`: Soft cap of scores.
    """
    n_shared = query.shape[1] // key.shape[1]
    factor = query.shape[2] ** -0.5 if scale is None else scale
    attended = []
    for i in range(len(query)):
        for head in range(query.shape[1]):
            scores = key[:, head // n_shared] @ query[i, head] * factor
            scores = scores if cap is None else cap * torch.tanh(scores / cap)
            powers = torch.exp(scores + bias[i])
            attended.append(powers @ value[:, head // n_shared] / powers.sum())
    return torch.stack(attended).view_as(query)


def causal_bias(n_queries: int, n_keys: int, window: int | None = None) -> Tensor:
    """Bias that shows each query, the last of which is at the last key, the keys up to its own."""
    ahead = torch.arange(n_keys) - torch.arange(n_queries)[:, None] - (n_keys - n_queries)
    hidden = (ahead > 0) | (ahead <= -(window or n_keys))
    return torch.zeros(n_queries, n_keys, dtype=torch.float64).masked_fill(hidden, -torch.inf)
