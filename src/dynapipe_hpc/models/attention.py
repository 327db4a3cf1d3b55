"""Attention: the one place that calls it, and that decides which kernels may run."""

from collections.abc import Callable, Sequence

import torch
from torch import Tensor
from torch.nn import functional
from torch.nn.attention import SDPBackend

from dynapipe_hpc.architecture.model_shape import ModelShape
from dynapipe_hpc.models.documents import Documents, LengthGroups
from dynapipe_hpc.models.packed_attention import (
    flash_obstacle,
    packed_attention,
    scaled,
    window_bias,
)

Attend = Callable[..., Tensor]
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

    `query`: What attends, shape (rows, heads, tokens, head size). `key`: What is attended to, shape
    (rows, key heads, source tokens, head size); every key head serves equally many adjacent heads
    (grouped queries). `bias`: Numbers added to scores, shape (rows or 1, heads or 1, tokens or 1,
    source tokens); minus infinity where nothing may be seen. `is_causal`: Whether a position sees
    only itself and earlier positions. `scale`: Factor of scores; None means 1 / sqrt(head size).
    """
    n_heads = query.shape[1] // key.shape[1]
    if n_heads > 1:
        # If no fused kernel takes grouped queries, torch would keep all scores.
        options = {"is_causal": is_causal, "enable_gqa": True}
        if torch._fused_sdp_choice(query, key, key, bias, **options) == SDPBackend.MATH.value:
            key, value = (each.repeat_interleave(n_heads, 1) for each in (key, value))
    has_groups = query.shape[1] != key.shape[1]
    return functional.scaled_dot_product_attention(
        query, key, value, bias, is_causal=is_causal, scale=scale, enable_gqa=has_groups
    )


def causal_attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    documents: Documents | None = None,
    *,
    scale: float | None = None,
    window: int | None = None,
    attend: Attend | None = None,
) -> Tensor:
    """Attention of every position to itself and to earlier positions, see `attention`.

    `documents`: Documents of a packed row, which attend to themselves only; None for attention over
    complete rows. `window`: Largest number of keys that a query sees, itself included; None means
    all. Where no kernel knows windows, a mask applies them. `attend`: Attention of rows, called as
    `attention`; None means `attention`, or kernels that know documents.
    """
    longest = query.shape[2] if documents is None else documents.longest
    if window is not None and window >= longest:
        window = None

    is_causal = window is None
    if documents is None:
        attend_rows = attend or attention
        bias = window_bias(longest, window, query)
        return attend_rows(query, key, value, bias=bias, is_causal=is_causal, scale=scale)
    if attend is None and not flash_obstacle(query.device, query.dtype, query.shape[-1]):
        q, k, v = (each[0].transpose(0, 1) for each in (scaled(query, scale), key, value))
        attended = packed_attention(q, k, v, queries=documents, keys=documents, window=window)
        return attended.transpose(0, 1)[None]
    groups = documents.length_groups
    biases = [window_bias(size.tokens, window, query) for size in groups.sizes]
    return attention_in_groups(
        query, key, value, groups, biases=biases, is_causal=is_causal, scale=scale, attend=attend
    )


def attention_in_groups(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    groups: LengthGroups,
    *,
    biases: Sequence[Tensor | None],
    is_causal: bool = False,
    scale: float | None = None,
    attend: Attend | None = None,
) -> Tensor:
    """Attention of documents of packed rows, one call per group of similar length, see `attention`.

    Padding of the documents is attended to, unless it comes later and attention is causal, or the
    group's bias keeps attention off it. `attend`: Attention of rows, called as `attention`.
    """
    # Heads come first, so that a row has the same memory layout alone and among other rows: with
    # another layout, products of matrices have other bits. Groups of heads need rows first.
    rows_first = int(query.shape[1] != key.shape[1])
    n_queries = [size.n_rows * size.tokens for size in groups.sizes]
    n_sources = [size.n_rows * size.source_tokens for size in groups.sizes]
    parts = zip(
        groups.sizes,
        biases,
        torch.split(query[0].index_select(1, groups.tokens), n_queries, 1),
        torch.split(key[0].index_select(1, groups.source_tokens), n_sources, 1),
        torch.split(value[0].index_select(1, groups.source_tokens), n_sources, 1),
        strict=True,
    )
    attend_rows = attend or attention
    attended = []
    for (n_rows, tokens, source_tokens), bias, *of_group in parts:
        lengths = (tokens, source_tokens, source_tokens)
        of_heads = [
            each.view(len(each), n_rows, length, -1).transpose(0, rows_first)
            for each, length in zip(of_group, lengths, strict=True)
        ]
        of_bias = None if bias is None else bias.transpose(0, 1 - rows_first)
        found = attend_rows(*of_heads, bias=of_bias, is_causal=is_causal, scale=scale)
        attended.append(found.transpose(0, rows_first).flatten(1, 2))
    return torch.cat(attended, 1).index_select(1, groups.places)[None]


def choose_kernels() -> None:
    """Leaves cuDNN out, which torch prefers on H100 and newer GPUs (sdp_utils.cpp).

    It plans for every new shape, which nearly every micro-batch has, in up to a second and with
    memory outside of torch's allocator.
    """
    torch.backends.cuda.enable_cudnn_sdp(False)


def kernels_of(shape: ModelShape, dtype: torch.dtype, device: torch.device) -> str:
    """Names of the kernels that run a model's attention, without a bias and with a learned bias.

    Flash and efficient attention keep one number per head and position, math keeps all scores. A
    packed row has a kernel of its own if the names include `packed flash`; if not, documents of
    similar length run together as rows of the kernel without a bias.
    """
    choose_kernels()
    size = (1, 1, _PROBE_TOKENS, shape.head_width)
    query = torch.empty(size, dtype=dtype, device=device, requires_grad=True)
    bias = query.new_empty((1, 1, _PROBE_TOKENS, _PROBE_TOKENS)).requires_grad_()
    plain = torch._fused_sdp_choice(query, query, query, is_causal=True)
    biased = torch._fused_sdp_choice(query, query, query, bias)
    packed = "" if packed_obstacle(shape, dtype, device) else "packed flash, "
    return f"{packed}causal {_name(plain)}, biased {_name(biased)}"


def packed_obstacle(shape: ModelShape, dtype: torch.dtype, device: torch.device) -> str:
    """Reason why packed rows have no kernel of their own; empty if they have one."""
    if shape.has_target_rows:
        return "its attention has a learned bias"
    return flash_obstacle(device, dtype, shape.head_width)


def _name(kernel: int) -> str:
    return SDPBackend(kernel).name.removesuffix("_ATTENTION").lower()
