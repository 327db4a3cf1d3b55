"""The seam of attention, against its definition, and the kernels that may run behind it."""

from collections.abc import Iterator
from typing import Any

import pytest
import torch
from tests.oracles.plain_attention import plain_attention
from torch import Tensor
from torch.nn.attention import SDPBackend, sdpa_kernel

from dynapipe_hpc.architecture.decoder import GptShape
from dynapipe_hpc.architecture.families import shape_from_values
from dynapipe_hpc.models.attention import attention, causal_attention, choose_kernels
from dynapipe_hpc.models.documents import Documents
from dynapipe_hpc.models.family import family_of

SHAPE = GptShape(n_layers=1, hidden_size=16, n_heads=2, ffn_size=32, vocab_size=31, max_tokens=24)


@pytest.fixture(autouse=True)
def cudnn_allowed() -> Iterator[None]:
    """Starts as torch does, and leaves the choice of this project behind."""
    torch.backends.cuda.enable_cudnn_sdp(True)
    yield
    choose_kernels()


def random_heads(tokens: int, seed: int) -> Tensor:
    stream = torch.manual_seed(seed)
    return torch.randn(2, 3, tokens, 4, dtype=torch.float64, generator=stream)


def test_groups_of_heads_are_repeated_for_a_bias(monkeypatch: pytest.MonkeyPatch) -> None:
    """As on GPUs, whose fused kernels take groups of heads, but none with a bias."""

    def chosen(*tensors: Tensor | None, enable_gqa: bool, **_: bool) -> int:
        has_bias = len(tensors) > 3 and tensors[3] is not None
        kernel = SDPBackend.MATH if enable_gqa and has_bias else SDPBackend.FLASH_ATTENTION
        return int(kernel.value)

    has_groups: list[bool] = []
    run: Any = torch.nn.functional.scaled_dot_product_attention

    def noted(*tensors: Tensor, enable_gqa: bool, **options: Any) -> Any:
        has_groups.append(enable_gqa)
        return run(*tensors, enable_gqa=enable_gqa, **options)

    monkeypatch.setattr(torch, "_fused_sdp_choice", chosen)
    monkeypatch.setattr(torch.nn.functional, "scaled_dot_product_attention", noted)
    query, key = random_heads(5, 0), random_heads(5, 1)[:, :1]
    plain = attention(query, key, key)
    biased = attention(query, key, key, bias=torch.zeros(1, 1, 5, 5, dtype=torch.float64))
    assert has_groups == [True, False]
    torch.testing.assert_close(plain, biased)


@pytest.mark.parametrize("kernel", [SDPBackend.FLASH_ATTENTION, SDPBackend.MATH])
@pytest.mark.parametrize("n_documents", [0, 3])
def test_neighbouring_heads_share_keys_and_values(kernel: SDPBackend, n_documents: int) -> None:
    rows = [random_heads(15, seed).transpose(0, 1)[:1] for seed in range(3)]
    query = torch.cat([random_heads(15, seed)[:1, :2] for seed in range(3, 6)], 1)
    key, value = (torch.cat([x, x.flip(1)], 1)[:, 1:] for x in rows[:2])
    assert (query.shape[1], key.shape[1]) == (6, 3)
    documents = Documents.from_lengths([5] * n_documents) if n_documents else None
    keys, values = (torch.stack([x, x], 2).flatten(1, 2) for x in (key, value))
    with sdpa_kernel(kernel):
        found = causal_attention(query, key, value, documents)
        wanted = causal_attention(query, keys, values, documents)
    torch.testing.assert_close(found, wanted, rtol=1e-12, atol=1e-14)


def test_a_bias_is_added_to_scores_of_another_scale() -> None:
    query, key, value = random_heads(5, 0), random_heads(7, 1), random_heads(7, 2)
    bias = torch.randn(5, 7, dtype=torch.float64, generator=torch.manual_seed(3))
    found = attention(query, key, value, bias=bias, scale=1.0)
    for row in zip(query, key, value, found, strict=True):
        q, k, v, of_row = (each.transpose(0, 1) for each in row)
        expected = plain_attention(q, k, v, bias, scale=1.0)
        torch.testing.assert_close(of_row, expected, rtol=1e-12, atol=0)


@pytest.mark.parametrize("family", ["gpt", "t5"])
def test_stages_leave_out_the_kernel_that_plans_for_every_shape(family: str) -> None:
    sizes = SHAPE.model_dump(exclude_defaults=True)
    shape = shape_from_values({**sizes, "family": family, "head_size": 8})
    family_of(shape)(shape, range(1), first=True, last=False)
    assert not torch.backends.cuda.cudnn_sdp_enabled()  # type: ignore[no-untyped-call]
