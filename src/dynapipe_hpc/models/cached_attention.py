"""Attention of a sample's next tokens to themselves and to all before them, which a cache holds."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from dynapipe_hpc.models.attention import visible_bias
from dynapipe_hpc.models.flash_attention import flash_backward, flash_forward
from dynapipe_hpc.models.key_value_cache import LayerCache
from dynapipe_hpc.models.slice_documents import SliceDocuments


def cached_attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    *,
    cache: LayerCache,
    part: SliceDocuments,
    window: int | None = None,
) -> Tensor:
    """Causal attention to the tokens of a cache, to which those given are added.

    The gradients of keys and values are complete if passes over all later tokens have gone back
    before: so backward passes run in descending order.

    Args:
        query: What attends, shape (tokens, heads, head size).
        key: Keys of the same tokens, shape (tokens, key heads, head size).
        value: Values of the same tokens, of the shape of `key`.
        cache: Keys and values of the tokens before.
        part: The tokens, and how many come before them.
        window: Number of keys that a query sees at most, itself included; None for all.

    Returns:
        Mixed values, of the shape of `query`.
    """
    mixed: Tensor = _CachedAttention.apply(  # type: ignore[no-untyped-call]
        query, key, value, cache, part, window
    )
    return mixed


class _CachedAttention(torch.autograd.Function):
    """The kernels for both directions. The cache is not saved: later tokens are written to it."""

    @staticmethod
    def forward(
        ctx: Any,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        cache: LayerCache,
        part: SliceDocuments,
        window: int | None,
    ) -> Tensor:
        first = part.first_key(window)
        keys, values = (each[first:] for each in cache.write(part.begin, key, value))
        if query.is_cuda:
            mixed, *left = flash_forward(query, keys, values, part.sizes(window))
        else:
            mixed, *left = attention_on_cpu(query, keys, values, window)
        ctx.cache, ctx.part, ctx.window = cache, part, window
        ctx.save_for_backward(query, mixed, *left)
        return mixed

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        query, *left = ctx.saved_tensors
        part: SliceDocuments = ctx.part
        first = part.first_key(ctx.window)
        inputs = query, *(each[first:] for each in ctx.cache.read(part.end))
        if query.is_cuda:
            of_query, *of_sources = flash_backward(gradient, inputs, left, part.sizes(ctx.window))
        else:
            of_query, *of_sources = gradients_on_cpu(gradient, inputs, left, ctx.window)
        sums = ctx.cache.sum_gradients(part.begin, of_sources, first)
        return of_query, *sums, None, None, None


def attention_on_cpu(
    query: Tensor, keys: Tensor, values: Tensor, window: int | None = None
) -> tuple[Tensor, Tensor]:
    """The forward pass by torch's flash attention for CPUs: mixed values, and sums of scores.

    Its causal attention is for as many keys as queries, so earlier keys are a call of their own:
    each query sees all of them. What the two mix is weighted by the exponentials of their scores.
    Where a window keeps some keys from some queries, there is one call, with a mask.
    """
    parts = [
        torch.ops.aten._scaled_dot_product_flash_attention_for_cpu(
            *_rows(query, *sources), **options
        )
        for *sources, options in _calls(query, keys, values, window)
    ]
    mixed, scores = parts[0]
    for earlier, of_earlier in parts[1:]:
        total = torch.logaddexp(scores, of_earlier)
        weight, of_earlier_weight = (
            (each - total).exp().unsqueeze(3).to(mixed.dtype) for each in (scores, of_earlier)
        )
        mixed, scores = weight * mixed + of_earlier_weight * earlier, total
    return mixed[0].transpose(0, 1), scores


def gradients_on_cpu(
    gradient: Tensor,
    inputs: Sequence[Tensor],
    left: Sequence[Tensor],
    window: int | None = None,
) -> list[Tensor]:
    """The backward pass: gradients of queries, keys and values.

    Of what a call mixed, the kernel needs only what all of them mixed together.
    """
    query, keys, values = inputs
    mixed, scores = left
    towards, out = (each.transpose(0, 1)[None] for each in (gradient, mixed))
    calls = [
        torch.ops.aten._scaled_dot_product_flash_attention_for_cpu_backward(
            towards, *_rows(query, *each), out, scores, 0.0, **{"is_causal": False, **options}
        )
        for *each, options in _calls(query, keys, values, window)
    ]
    of_queries, *of_sources = zip(*calls, strict=True)
    gradients = [sum(of_queries), *(torch.cat(each[::-1], 2) for each in of_sources)]
    # Heads that share keys and values add up what they do to them.
    return [
        each[0].transpose(0, 1).unflatten(1, (of_input.shape[1], -1)).sum(2)
        for of_input, each in zip(inputs, gradients, strict=True)
    ]


def _calls(
    query: Tensor, keys: Tensor, values: Tensor, window: int | None
) -> Iterator[tuple[Tensor, Tensor, Mapping[str, Any]]]:
    """Keys and values of the queries' own tokens, then of those before, each with what is seen.

    Where a window hides some keys, all keys come in one call, with a mask.
    """
    if window is not None and window < len(keys):
        yield keys, values, {"attn_mask": visible_bias(len(query), len(keys), window, query)}
        return
    begin = len(keys) - len(query)
    yield keys[begin:], values[begin:], {"is_causal": True}
    if begin:
        yield keys[:begin], values[:begin], {"is_causal": False}


def _rows(query: Tensor, keys: Tensor, values: Tensor) -> Iterator[Tensor]:
    """Each as a row with the heads of queries, shape (1, heads, tokens, head size)."""
    for each in (query, keys, values):
        n_shared = query.shape[1] // each.shape[1]
        heads = each if n_shared == 1 else each.repeat_interleave(n_shared, 1)
        yield heads.transpose(0, 1)[None]
