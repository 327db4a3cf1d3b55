"""Attention with windows, scales and soft caps in 16 bits, against the same in float64."""

from functools import partial

import pytest
import torch
from torch import Tensor

from dynapipe_hpc.models.attention import causal_attention
from dynapipe_hpc.models.foreign_attention import capped_attention
from dynapipe_hpc.models.tokens.documents import Documents

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
