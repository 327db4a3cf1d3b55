"""The seam of attention, against its definition, and the kernels that may run behind it."""

import math
from collections.abc import Iterator

import pytest
import torch
from torch import Tensor

from dynapipe_hpc.models.attention import attention, choose_kernels, kernels_of
from dynapipe_hpc.models.family import family_of
from dynapipe_hpc.plan.model_shape import ModelShape

SHAPE = ModelShape(n_layers=1, hidden_size=16, n_heads=2, ffn_size=32, vocab_size=31, max_tokens=24)
CPU = torch.device("cpu")


@pytest.fixture(autouse=True)
def cudnn_allowed() -> Iterator[None]:
    """Starts as torch does, and leaves the choice of this project behind."""
    torch.backends.cuda.enable_cudnn_sdp(True)
    yield
    choose_kernels()


def random_heads(tokens: int, seed: int) -> Tensor:
    stream = torch.manual_seed(seed)
    return torch.randn(2, 3, tokens, 4, dtype=torch.float64, generator=stream)


def expected(query: Tensor, key: Tensor, value: Tensor, bias: Tensor, scale: float) -> Tensor:
    """Position by position, with the softmax written out."""
    output = torch.empty_like(query)
    for row, head, i in torch.cartesian_prod(*map(torch.arange, query.shape[:3])).tolist():
        scores = [float(query[row, head, i] @ k) * scale for k in key[row, head]]
        scores = [s + float(b) for s, b in zip(scores, bias[i], strict=True)]
        powers = [math.exp(s) for s in scores]
        output[row, head, i] = sum(
            p / sum(powers) * v for p, v in zip(powers, value[row, head], strict=True)
        )
    return output


def test_a_position_sees_itself_and_what_comes_before() -> None:
    query, key, value = (random_heads(5, seed) for seed in range(3))
    later = torch.zeros(5, 5).masked_fill_(torch.ones(5, 5).triu(1) > 0, -math.inf)
    found = attention(query, key, value, is_causal=True)
    torch.testing.assert_close(found, expected(query, key, value, later, 0.5), rtol=1e-12, atol=0)


def test_a_bias_is_added_to_scores_of_another_scale() -> None:
    query, key, value = random_heads(5, 0), random_heads(7, 1), random_heads(7, 2)
    bias = torch.randn(5, 7, dtype=torch.float64, generator=torch.manual_seed(3))
    found = attention(query, key, value, bias=bias, scale=1.0)
    torch.testing.assert_close(found, expected(query, key, value, bias, 1.0), rtol=1e-12, atol=0)


@pytest.mark.parametrize("family", ["gpt", "t5"])
def test_stages_leave_out_the_kernel_that_plans_for_every_shape(family: str) -> None:
    shape = SHAPE.model_copy(update={"family": family, "head_size": 8})
    family_of(shape)(shape, range(1), first=True, last=False)
    assert not torch.backends.cuda.cudnn_sdp_enabled()  # type: ignore[no-untyped-call]


def test_kernels_have_names() -> None:
    assert kernels_of(SHAPE, torch.float32, CPU) == "causal flash, biased math"
    assert not torch.backends.cuda.cudnn_sdp_enabled()  # type: ignore[no-untyped-call]
