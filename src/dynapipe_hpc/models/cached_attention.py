"""Attention of a sample's next tokens to themselves and to all before them, which a cache holds."""

from collections.abc import Iterator, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from dynapipe_hpc.models.flash_attention import FlashSizes, flash_backward, flash_forward
from dynapipe_hpc.models.key_value_cache import LayerCache
from dynapipe_hpc.models.slice_documents import SliceDocuments


def cached_attention(
    query: Tensor, key: Tensor, value: Tensor, *, cache: LayerCache, part: SliceDocuments
) -> Tensor:
    """Causal attention to the tokens of a cache, to which those given are added.

    The gradients of keys and values are complete if passes over all later tokens have gone back
    before: so backward passes run in descending order.

    Args:
        query: What attends, shape (tokens, heads, head size).
        key: Keys of the same tokens, shape (tokens, key heads, head size).
        value: Values of the same tokens, of the shape of `key`.
        cache: Keys and values of the tokens before.
        part: The tokens, and all up to them.

    Returns:
        Mixed values, of the shape of `query`.
    """
    mixed: Tensor = _CachedAttention.apply(query, key, value, cache, part)  # type: ignore[no-untyped-call]
    return mixed


class _CachedAttention(torch.autograd.Function):
    """The kernels for both directions. The cache is not saved: later tokens are written to it."""

    @staticmethod
    def forward(
        ctx: Any, query: Tensor, key: Tensor, value: Tensor, cache: LayerCache, part: SliceDocuments
    ) -> Tensor:
        run = flash_forward if query.is_cuda else attention_on_cpu
        mixed, *left = run(query, *cache.write(part.begin, key, value), part.flash_sizes)
        ctx.cache, ctx.part = cache, part
        ctx.save_for_backward(query, mixed, *left)
        return mixed

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        query, *left = ctx.saved_tensors
        part: SliceDocuments = ctx.part
        inputs = query, *ctx.cache.read(part.end)
        run = flash_backward if query.is_cuda else gradients_on_cpu
        of_query, *of_sources = run(gradient, inputs, left, part.flash_sizes)
        return of_query, *ctx.cache.sum_gradients(part.begin, of_sources), None, None


def attention_on_cpu(
    query: Tensor, keys: Tensor, values: Tensor, _: FlashSizes | None = None
) -> tuple[Tensor, Tensor]:
    """The forward pass by torch's flash attention for CPUs: mixed values, and sums of scores.

    Its causal attention is for as many keys as queries, so earlier keys are a call of their own:
    each query sees all of them. What the two mix is weighted by the exponentials of their scores.
    """
    parts = [
        torch.ops.aten._scaled_dot_product_flash_attention_for_cpu(
            *_rows(query, *sources), is_causal=is_causal
        )
        for *sources, is_causal in _own_and_earlier(query, keys, values)
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
    _: FlashSizes | None = None,
) -> list[Tensor]:
    """The backward pass: gradients of queries, keys and values.

    Of what a call mixed, the kernel needs only what all of them mixed together.
    """
    query, *sources = inputs
    mixed, scores = left
    towards, out = (each.transpose(0, 1)[None] for each in (gradient, mixed))
    calls = [
        torch.ops.aten._scaled_dot_product_flash_attention_for_cpu_backward(
            towards, *_rows(query, *each), out, scores, 0.0, is_causal
        )
        for *each, is_causal in _own_and_earlier(query, *sources)
    ]
    of_queries, *of_sources = zip(*calls, strict=True)
    gradients = [sum(of_queries), *(torch.cat(each[::-1], 2) for each in of_sources)]
    # Heads that share keys and values add up what they do to them.
    return [
        each[0].transpose(0, 1).unflatten(1, (of_input.shape[1], -1)).sum(2)
        for of_input, each in zip(inputs, gradients, strict=True)
    ]


def _own_and_earlier(
    query: Tensor, keys: Tensor, values: Tensor
) -> Iterator[tuple[Tensor, Tensor, bool]]:
    """Keys and values of the queries' own tokens, then of those before, and whether causal."""
    begin = len(keys) - len(query)
    yield keys[begin:], values[begin:], True
    if begin:
        yield keys[:begin], values[:begin], False


def _rows(query: Tensor, keys: Tensor, values: Tensor) -> Iterator[Tensor]:
    """Each as a row with the heads of queries, shape (1, heads, tokens, head size)."""
    for each in (query, keys, values):
        n_shared = query.shape[1] // each.shape[1]
        heads = each if n_shared == 1 else each.repeat_interleave(n_shared, 1)
        yield heads.transpose(0, 1)[None]
