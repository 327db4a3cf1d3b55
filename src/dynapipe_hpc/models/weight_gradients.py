"""Gradients of 16-bit weights of linear maps, added to float32 sums where they are computed."""

from functools import cache

import torch
from torch import Tensor


def add_up_in(weight: Tensor, total: Tensor) -> None:
    """Makes `weight_gradient` add to a float32 tensor of the weight's shape, where it can."""
    weight.float32_sum = total  # type: ignore[attr-defined]


def weight_gradient(weight: Tensor, values: Tensor, gradient: Tensor) -> Tensor | None:
    """Gradient of a linear map's weight, shape (outputs, inputs); None if it was added already.

    Autograd calls the hooks of a weight in either case.

    Args:
        weight: Weight of the map, a leaf of the graph.
        values: Input of the map, shape (..., inputs).
        gradient: Gradient of its output, shape (..., outputs).
    """
    factors = gradient.flatten(0, -2).t(), values.flatten(0, -2)
    if not adds_in_product(weight):
        return torch.mm(*factors)
    add_product(weight.float32_sum, *factors)  # type: ignore[attr-defined]
    return None


def adds_in_product(weight: Tensor) -> bool:
    """Whether the product that is a weight's gradient can be added to its float32 sum."""
    return hasattr(weight, "float32_sum") and _can_add(weight.device, weight.dtype)


def add_product(total: Tensor, left: Tensor, right: Tensor) -> None:
    """Adds the product of two 16-bit matrices to a float32 one, without rounding it first."""
    torch.addmm(total, left, right, torch.float32, out=total)


@cache
def _can_add(device: torch.device, dtype: torch.dtype) -> bool:
    """Whether `add_product` runs; torch has it for GPUs, in some versions with other checks."""
    if device.type != "cuda":
        return False
    factor = torch.zeros(8, 8, dtype=dtype, device=device)
    try:
        add_product(factor.float(), factor, factor)
    except (RuntimeError, TypeError):
        return False
    return True
