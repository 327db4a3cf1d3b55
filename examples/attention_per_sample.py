"""Attention within each of the samples that a row holds end to end, without FlashAttention.

    register_attention_per_sample()
    model.set_attn_implementation("per_sample")
    collate = DataCollatorWithFlattening(return_flash_attn_kwargs=True)
    sampler = PlannedSampler(lengths, cost, samples_per_step=64, limit=1024, packed=True)

A row is the only one of its micro-batch, has no padding and no mask. With FlashAttention, the same
collator and sampler do with `model.set_attn_implementation("flash_attention_2")` instead.
"""

from typing import Any

import torch
from torch import Tensor, nn
from transformers import AttentionInterface, AttentionMaskInterface


def attention_per_sample(
    module: nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    *,
    cu_seq_lens_q: Tensor | None = None,
    scaling: float | None = None,
    dropout: float = 0.0,
    **_: Any,
) -> tuple[Tensor, None]:
    """Causal attention, `[1, tokens, heads, width]`, of a row `[1, heads, tokens, width]`.

    Raises:
        ValueError: It is not said where samples begin.
    """
    del module, attention_mask
    if cu_seq_lens_q is None:
        raise ValueError(
            "attention per sample needs cu_seq_lens_q, where samples begin; collate with "
            "DataCollatorWithFlattening(return_flash_attn_kwargs=True)"
        )
    lengths = cu_seq_lens_q.diff().tolist()
    samples = zip(*(torch.split(each, lengths, dim=2) for each in (query, key, value)), strict=True)
    attended = [
        nn.functional.scaled_dot_product_attention(
            of_query,
            of_key,
            of_value,
            dropout_p=dropout,
            is_causal=True,
            scale=scaling,
            enable_gqa=query.shape[1] != key.shape[1],
        )
        for of_query, of_key, of_value in samples
    ]
    return torch.cat(attended, dim=2).transpose(1, 2).contiguous(), None


def _no_mask(*_: Any, **__: Any) -> None:
    """A mask of all pairs in a row would take longer than the attention."""


def register_attention_per_sample() -> None:
    """Makes it known to transformers as "per_sample"."""
    AttentionInterface.register("per_sample", attention_per_sample)
    AttentionMaskInterface.register("per_sample", _no_mask)
