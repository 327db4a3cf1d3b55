"""Attention: the one place that calls it, and that decides which kernels may run."""

import torch
from torch import Tensor
from torch.nn import functional
from torch.nn.attention import SDPBackend

from dynapipe_hpc.plan.model_shape import ModelShape

_PROBE_TOKENS = 8


def attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    *,
    bias: Tensor | None = None,
    is_causal: bool = False,
    scale: float | None = None,
) -> Tensor:
    """Values weighted by the softmax of scores, of the shape of `query`.

    Args:
        query: What attends, shape (rows, heads, tokens, head size).
        key: What is attended to, shape (rows, heads, source tokens, head size).
        value: What is weighted, of the shape of `key`.
        bias: Numbers added to scores, shape (rows or 1, heads or 1, tokens or 1, source tokens);
            minus infinity where nothing may be seen.
        is_causal: Whether a position sees only itself and earlier positions.
        scale: Factor of scores; None for one over the root of the head size.
    """
    return functional.scaled_dot_product_attention(
        query, key, value, bias, is_causal=is_causal, scale=scale
    )


def choose_kernels() -> None:
    """Leaves cuDNN out of the kernels that torch chooses from.

    cuDNN builds a plan for every new shape, which takes up to a second and memory outside of
    torch's allocator. Nearly every micro-batch of a dynamic plan is a new shape.

    Source:
        `priority_order` in torch's sdp_utils.cpp, which puts cuDNN first on H100 and newer GPUs.
    """
    torch.backends.cuda.enable_cudnn_sdp(False)


def kernels_of(shape: ModelShape, dtype: torch.dtype, device: torch.device) -> str:
    """Names of the kernels that run a model's attention: without a bias, and with one that learns.

    Flash and efficient attention keep one number per head and position, math keeps all scores.
    """
    choose_kernels()
    size = (1, 1, _PROBE_TOKENS, shape.attention_size // shape.n_heads)
    query = torch.empty(size, dtype=dtype, device=device, requires_grad=True)
    bias = query.new_empty((1, 1, _PROBE_TOKENS, _PROBE_TOKENS)).requires_grad_()
    plain = torch._fused_sdp_choice(query, query, query, is_causal=True)
    biased = torch._fused_sdp_choice(query, query, query, bias)
    return f"causal {_name(plain)}, biased {_name(biased)}"


def _name(kernel: int) -> str:
    return SDPBackend(kernel).name.removesuffix("_ATTENTION").lower()
