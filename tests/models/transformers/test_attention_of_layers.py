"""Attention that `transformers` calls: windows and soft caps, against the formula."""

from functools import partial
from itertools import pairwise
from typing import Any

import pytest
import torch
from tests.oracles.plain_attention import causal_bias, plain_attention
from torch import Tensor, nn
from torch.nn import functional

from dynapipe_hpc.data.errors import InputError
from dynapipe_hpc.models.batch import Batch
from dynapipe_hpc.models.documents import Documents
from dynapipe_hpc.models.transformers.attention import (
    Attend,
    SdpaCalls,
    attend_within,
    attending_by,
    attention_interface,
    reached_attention,
)

LENGTHS = (5, 1, 9, 3, 4, 8)
HEADS, KEY_HEADS, SIZE = 4, 2, 3


def random_row(n_tokens: int) -> list[Tensor]:
    stream = torch.Generator().manual_seed(3)
    sizes = [(1, heads, n_tokens, SIZE) for heads in (HEADS, KEY_HEADS, KEY_HEADS)]
    return [
        torch.randn(size, generator=stream, dtype=torch.float64, requires_grad=True)
        for size in sizes
    ]


def within(inputs: list[Tensor], documents: Documents | None) -> Attend:
    size = inputs[0].shape[0], inputs[0].shape[2]
    return partial(attend_within, Batch(size, documents), 0)


def attended(
    inputs: list[Tensor],
    documents: Documents | None,
    *,
    scale: float | None = None,
    window: int | None = None,
    cap: float | None = None,
) -> Tensor:
    """Attention as a layer of `transformers` calls it, heads before tokens."""
    options: dict[str, Any] = {"scaling": scale, "sliding_window": window, "softcap": cap}
    with attending_by(within(inputs, documents)):
        attended, _ = attention_interface(nn.Identity(), *inputs, None, **options)
    return attended.transpose(1, 2)


@pytest.mark.parametrize("window", [None, 1, 3, 8, 20])
@pytest.mark.parametrize("cap", [None, 0.7])
@pytest.mark.parametrize("scale", [None, 0.3])
def test_packed_documents_attend_by_the_formula(
    window: int | None, cap: float | None, scale: float | None
) -> None:
    inputs = random_row(sum(LENGTHS))
    documents = Documents.from_lengths(LENGTHS)
    found = attended(inputs, documents, scale=scale, window=window, cap=cap)
    rows = [each[0].transpose(0, 1) for each in (*inputs, found)]
    for start, end in pairwise(documents.offsets):
        q, k, v, of_own = (each[start:end] for each in rows)
        bias = causal_bias(end - start, end - start, window)
        expected = plain_attention(q, k, v, bias, scale=scale, cap=cap)
        torch.testing.assert_close(of_own, expected, rtol=1e-12, atol=0)


QUERY, KEY, VALUE = random_row(4)


@pytest.mark.parametrize(
    ("value", "masks", "options", "name"),
    [
        (VALUE, (), {"dropout": 0.1}, "dropout"),
        (VALUE, (), {"s_aux": torch.zeros(2)}, "s_aux"),
        (VALUE, (torch.zeros(4, 4),), {}, "attention_mask"),
        (VALUE[..., :2], (), {}, "values and queries of different sizes"),
    ],
)
def test_other_options_are_refused_by_name(
    value: Tensor, masks: tuple[Tensor, ...], options: dict[str, Any], name: str
) -> None:
    with pytest.raises(InputError, match=f"Identity of transformers asks attention for {name}"):
        attention_interface(nn.Identity(), QUERY, KEY, value, *masks, **options)


def test_other_attention_than_causal_is_refused() -> None:
    module = nn.Identity()
    module.is_causal = False  # type: ignore[assignment]
    with pytest.raises(InputError, match="is_causal = false"):
        attention_interface(module, QUERY, KEY, VALUE)


def test_calls_of_torch_with_the_mark_are_this_attention() -> None:
    inputs, documents = random_row(sum(LENGTHS)), Documents.from_lengths(LENGTHS)
    query, key, value = inputs
    mark = torch.zeros(1, 1, 1, 1)
    with SdpaCalls(mark), attending_by(within(inputs, documents)):
        found = functional.scaled_dot_product_attention(
            query, key, value, attn_mask=mark, scale=0.3
        )
    assert torch.equal(found, attended(inputs, documents, scale=0.3))


def test_calls_of_torch_with_anything_else_are_refused() -> None:
    (query, key, value), mark = random_row(4), torch.zeros(1, 1, 1, 1)
    with SdpaCalls(mark):
        for mask in (None, mark + 0):
            with pytest.raises(InputError, match="adds to the scores of torch's attention"):
                functional.scaled_dot_product_attention(query, key, value, attn_mask=mask)
        with pytest.raises(InputError, match="or drops some"):
            functional.scaled_dot_product_attention(
                query, key, value, attn_mask=mark, dropout_p=0.1
            )
        call = functional.scaled_dot_product_attention

        def layer(attend: Attend) -> None:
            with attending_by(attend):
                call(query, key, value, attn_mask=mark)

        reached = reached_attention(layer)
    assert reached is not None
    assert reached.window is None
