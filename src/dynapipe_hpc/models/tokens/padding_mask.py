"""Mask of the padding behind the tokens of rows."""

import math

import torch
from torch import Tensor


def padding_mask(lengths: Tensor, n_tokens: int, dtype: torch.dtype) -> Tensor:
    """Padding mask, added to scores: shape (rows, 1, 1, n_tokens).

    Args:
        lengths: How many positions of each row are not padding, shape (rows,).
        n_tokens: Length of the rows.
        dtype: Type of the numbers.
    """
    places = torch.arange(n_tokens, device=lengths.device)
    is_padding = places >= lengths[:, None]
    mask = torch.zeros_like(is_padding, dtype=dtype).masked_fill_(is_padding, -math.inf)
    return mask[:, None, None, :]
