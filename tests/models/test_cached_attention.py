"""Attention of slices to a cache, against attention of the whole sample."""

from collections.abc import Sequence
from itertools import pairwise

import pytest
import torch
from torch import Tensor

from dynapipe_hpc.models.attention import causal_attention
from dynapipe_hpc.models.attention_context import SliceDocuments, cached_attention
from dynapipe_hpc.models.documents import Documents
from dynapipe_hpc.models.key_value_cache import LayerCache

HEADS, KEY_HEADS, HEAD_SIZE = 4, 2, 8


def drawn(n_tokens: int, dtype: torch.dtype = torch.float64) -> list[Tensor]:
    """Queries, keys, values, and gradients of the attended values."""
    stream = torch.manual_seed(1)
    return [
        torch.randn(n_tokens, heads, HEAD_SIZE, dtype=torch.float64, generator=stream).to(dtype)
        for heads in (HEADS, KEY_HEADS, KEY_HEADS, HEADS)
    ]


def whole(inputs: Sequence[Tensor], towards: Tensor, window: int | None = None) -> list[Tensor]:
    """Mixed values and gradients of the whole sample."""
    leaves = [each.clone().requires_grad_() for each in inputs]
    query, key, value = (each.transpose(0, 1)[None] for each in leaves)
    attended = causal_attention(query, key, value, window=window)[0].transpose(0, 1)
    return [attended.detach(), *torch.autograd.grad(attended, leaves, towards)]


def sliced(
    inputs: Sequence[Tensor], towards: Tensor, bounds: Sequence[int], window: int | None = None
) -> list[Tensor]:
    """The same slice by slice: forward in ascending, backward in descending order."""
    cache = LayerCache(bounds[-1])
    passes = []
    for begin, end in pairwise(bounds):
        leaves = [each[begin:end].clone().requires_grad_() for each in inputs]
        part = SliceDocuments.from_documents(Documents.from_lengths([end - begin]), begin)
        query, key, value = leaves
        attended = cached_attention(query, key, value, cache=cache, part=part, window=window)
        passes.append((leaves, attended))
    gradients = [
        torch.autograd.grad(attended, leaves, towards[begin:end])
        for (leaves, attended), (begin, end) in reversed(
            list(zip(passes, pairwise(bounds), strict=True))
        )
    ]
    assert len(cache.tensors) == 2  # the sums of gradients are gone
    mixed_values = torch.cat([attended.detach() for _, attended in passes])
    return [mixed_values, *(torch.cat(each[::-1]) for each in zip(*gradients, strict=True))]


@pytest.mark.parametrize(
    "bounds", [[0, 20], [0, 1, 20], [0, 19, 20], [0, 7, 8, 20], list(range(21))]
)
@pytest.mark.parametrize("window", [None, 1, 2, 8, 13, 19, 20, 30])
def test_slices_give_what_the_whole_sample_gives(bounds: Sequence[int], window: int | None) -> None:
    *inputs, towards = drawn(20)
    found, expected = sliced(inputs, towards, bounds, window), whole(inputs, towards, window)
    for one, other in zip(found, expected, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-12, atol=1e-13)


def test_a_window_reads_no_keys_before_it() -> None:
    (part,) = [SliceDocuments.from_documents(Documents.from_lengths([4]), 10)]
    assert [part.first_key(window) for window in (None, 1, 4, 10, 11, 12)] == [0, 10, 7, 1, 0, 0]
    assert (part.sizes(4).longest, part.sizes(4).window) == ((4, 7), 4)
    assert part.sizes(4).offsets[1].tolist() == [0, 7]
    assert part.sizes(None).longest == (4, 14)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_sixty_four_slices_in_16_bits_are_as_exact_as_the_whole_sample(dtype: torch.dtype) -> None:
    n_tokens = 512
    *inputs, towards = drawn(n_tokens, dtype)
    exact = whole([each.double() for each in inputs], towards.double())
    bounds = range(0, n_tokens + 1, n_tokens // 64)
    found, unsliced = sliced(inputs, towards, bounds), whole(inputs, towards)
    for one, other, right in zip(found, unsliced, exact, strict=True):
        error, unsliced_error = ((each.double() - right).norm() for each in (one, other))
        assert error <= 2 * unsliced_error


def test_sums_of_gradients_are_float32_and_only_of_what_comes_before() -> None:
    cache = LayerCache(8)
    key, value = torch.zeros(2, 8, 1, 4, dtype=torch.bfloat16).unbind()
    cache.write(0, key, value)
    gradients = torch.ones(8, 1, 4, dtype=torch.bfloat16), torch.ones(8, 1, 4, dtype=torch.bfloat16)
    complete = cache.sum_gradients(6, gradients)
    assert [(each.shape[0], each.dtype) for each in complete] == [(2, torch.bfloat16)] * 2
    *_, sums = cache.tensors
    assert (sums.shape[0], sums.dtype) == (6, torch.float32)
