"""Attention with windows, scales and soft caps in 16 bits, against the same in float64."""

from functools import partial
from itertools import pairwise

import pytest
import torch
from torch import Tensor

from dynapipe_hpc.models.attention import causal_attention
from dynapipe_hpc.models.attention_context import SliceDocuments, cached_attention
from dynapipe_hpc.models.documents import Documents
from dynapipe_hpc.models.key_value_cache import LayerCache
from dynapipe_hpc.models.transformers.attention import capped_attention

pytestmark = pytest.mark.gpu

LENGTHS = (70, 3, 128, 40)
HEADS, KEY_HEADS, SIZE = 4, 2, 64


def with_gradients(
    inputs: list[Tensor],
    lengths: tuple[int, ...] | None,
    *,
    window: int | None,
    cap: float | None,
    scale: float,
) -> list[Tensor]:
    """The result, and the gradients of the sum of its squares."""
    leaves = [each.detach().requires_grad_() for each in inputs]
    documents = lengths and Documents.from_lengths(lengths).to(inputs[0].device)
    attend = causal_attention if cap is None else partial(capped_attention, cap=cap)
    query, key, value = leaves
    mixed = attend(query, key, value, documents or None, scale=scale, window=window)
    return [mixed.detach(), *torch.autograd.grad(mixed, leaves, 2 * mixed.detach())]


@pytest.mark.parametrize("lengths", [LENGTHS, None], ids=["packed", "padded"])
@pytest.mark.parametrize("window", [None, 16])
@pytest.mark.parametrize("cap", [None, 2.0])
@pytest.mark.parametrize("scale", [0.125, 0.3])
def test_attention_in_16_bits_is_that_of_float64(
    lengths: tuple[int, ...] | None,
    window: int | None,
    cap: float | None,
    scale: float,
    device: torch.device,
) -> None:
    stream = torch.Generator().manual_seed(3)
    rows = 1 if lengths else 2
    drawn = [
        torch.randn(rows, heads, sum(LENGTHS), SIZE, generator=stream, dtype=torch.float64)
        for heads in (HEADS, KEY_HEADS, KEY_HEADS)
    ]
    exact = with_gradients(drawn, lengths, window=window, cap=cap, scale=scale)
    inputs = [each.to(device, torch.bfloat16) for each in drawn]
    found = with_gradients(inputs, lengths, window=window, cap=cap, scale=scale)
    for own, expected in zip(found, exact, strict=True):
        error = (own.cpu().double() - expected).norm() / expected.norm()
        assert error < 0.03


@pytest.mark.parametrize("window", [2, 16, 50, 200])
@pytest.mark.parametrize("bounds", [(0, 130, 256), (0, 7, 20, 256)])
def test_slices_in_16_bits_see_what_whole_samples_do_in_float64(
    bounds: tuple[int, ...], window: int, device: torch.device
) -> None:
    stream = torch.Generator().manual_seed(3)
    *drawn, towards = (
        torch.randn(bounds[-1], heads, SIZE, generator=stream, dtype=torch.float64)
        for heads in (HEADS, KEY_HEADS, KEY_HEADS, HEADS)
    )
    leaves = [each.clone().requires_grad_() for each in drawn]
    query, key, value = (each.transpose(0, 1)[None] for each in leaves)
    whole = causal_attention(query, key, value, window=window)[0].transpose(0, 1)
    exact = [whole.detach(), *torch.autograd.grad(whole, leaves, towards)]

    cache, passes = LayerCache(bounds[-1]), []
    for begin, end in pairwise(bounds):
        document = Documents.from_lengths([end - begin])
        part = SliceDocuments.from_documents(document, begin).to(device)
        own = [each[begin:end].to(device, torch.bfloat16).requires_grad_() for each in drawn]
        query, key, value = own
        mixed = cached_attention(query, key, value, cache=cache, part=part, window=window)
        passes.append((own, mixed, towards[begin:end].to(device, torch.bfloat16)))
    gradients = [torch.autograd.grad(mixed, own, each) for own, mixed, each in reversed(passes)]
    found = [
        torch.cat([mixed.detach() for _, mixed, _ in passes]),
        *(torch.cat(each[::-1]) for each in zip(*gradients, strict=True)),
    ]
    for one, expected in zip(found, exact, strict=True):
        error = (one.cpu().double() - expected).norm() / expected.norm()
        assert error < 0.03


def test_grouped_heads_keep_no_scores_beside_a_window(device: torch.device) -> None:
    n_tokens = 4096
    query, key, value = (
        torch.randn(1, n, n_tokens, SIZE, device=device, dtype=torch.bfloat16).requires_grad_()
        for n in (32, 8, 8)
    )
    before = torch.cuda.memory_allocated(device)
    torch.cuda.reset_peak_memory_stats(device)
    causal_attention(query, key, value, window=1024)
    taken = torch.cuda.max_memory_allocated(device) - before
    assert taken < 32 * n_tokens**2 * 2  # scores of all heads in 16 bits
