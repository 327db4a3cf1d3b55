"""Tensors by name, compared to the bit."""

from collections.abc import Mapping

import torch
from torch import Tensor


def different(found: Mapping[str, Tensor], expected: Mapping[str, Tensor]) -> list[str]:
    """Names that only one side has, or whose tensors differ."""
    return [
        name
        for name in sorted({*found, *expected})
        if name not in found or name not in expected or not torch.equal(found[name], expected[name])
    ]
