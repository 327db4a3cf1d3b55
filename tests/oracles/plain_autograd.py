"""A GPT and a T5 in plain operations of torch, one sample at a time, for their gradients.

Written from docs/models.md; shares no code with the package.
"""

import math
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

Weights = Mapping[str, Tensor]
Model = Mapping[str, Any]


def gpt_losses(
    weights: Weights, model: Model, inputs: Sequence[int], targets: Sequence[int], start: int
) -> Tensor:
    """The cross entropy of every target token."""
    labels = [*inputs, *targets]
    z = weights["embedding.tokens.weight"][[start, *labels[:-1]]]
    z = z + weights["embedding.positions.weight"][: len(labels)]
    seen = torch.ones(len(labels), len(labels)).tril() == 1
    for i in range(model["n_layers"]):
        name, d = f"layers.{i}", model["hidden_size"] // model["n_heads"]
        normed = _layer_norm(weights, f"{name}.attention_norm", z)
        q, k, v = _map(weights, f"{name}.attention.query_key_value", normed).chunk(3, dim=1)
        unseen = torch.where(seen, 0.0, -math.inf)
        mixed = _attention(q / math.sqrt(d), k, v, model["n_heads"], unseen)
        z = z + _map(weights, f"{name}.attention.output", mixed)
        normed = _layer_norm(weights, f"{name}.feed_forward_norm", z)
        u = _map(weights, f"{name}.feed_forward.inner", normed)
        gelu = u / 2 * (1 + torch.tanh(math.sqrt(2 / math.pi) * (u + 0.044715 * u**3)))
        z = z + _map(weights, f"{name}.feed_forward.output", gelu)
    logits = _layer_norm(weights, "head.norm", z) @ weights["head.logits.weight"].T
    return _cross_entropies(logits, labels)[len(inputs) :]


def t5_losses(
    weights: Weights, model: Model, inputs: Sequence[int], targets: Sequence[int], start: int
) -> Tensor:
    """The cross entropy of every target token."""
    vectors = weights["embedding.weight"]
    z = vectors[list(inputs) or [start]]
    for i in range(model["n_layers"]):
        z = z + _self_attention(
            weights, model, f"encoder.{i}", z, _bias(weights, "encoder", len(z))
        )
        z = z + _feed_forward(weights, f"encoder.{i}", z)
    encoded = _rms_norm(z, weights["encoder_norm.weight"])
    z = vectors[[start, *targets[:-1]]]
    for i in range(model["n_layers"]):
        z = z + _self_attention(
            weights, model, f"decoder.{i}", z, _bias(weights, "decoder", len(z))
        )
        normed = _rms_norm(z, weights[f"decoder.{i}.cross_attention_norm.weight"])
        z = z + _t5_attention(weights, model, f"decoder.{i}.cross_attention", normed, encoded, 0.0)
        z = z + _feed_forward(weights, f"decoder.{i}", z)
    z = _rms_norm(z, weights["decoder_norm.weight"]) / math.sqrt(model["hidden_size"])
    return _cross_entropies(z @ vectors.T, targets)


def _self_attention(weights: Weights, model: Model, name: str, z: Tensor, bias: Tensor) -> Tensor:
    normed = _rms_norm(z, weights[f"{name}.attention_norm.weight"])
    return _t5_attention(weights, model, f"{name}.attention", normed, normed, bias)


def _t5_attention(
    weights: Weights, model: Model, name: str, z: Tensor, source: Tensor, bias: Tensor | float
) -> Tensor:
    q = z @ weights[f"{name}.query.weight"].T
    k, v = (source @ weights[f"{name}.key_value.weight"].T).chunk(2, dim=1)
    return _attention(q, k, v, model["n_heads"], bias) @ weights[f"{name}.output.weight"].T


def _attention(q: Tensor, k: Tensor, v: Tensor, n_heads: int, added: Tensor | float) -> Tensor:
    """The heads' outputs, one behind the other; `added` to scores (heads or 1, tokens, source)."""
    q, k, v = (x.view(len(x), n_heads, -1).transpose(0, 1) for x in (q, k, v))
    return (q @ k.mT + added).softmax(-1).matmul(v).transpose(0, 1).flatten(1)


def _feed_forward(weights: Weights, name: str, z: Tensor) -> Tensor:
    normed = _rms_norm(z, weights[f"{name}.feed_forward_norm.weight"])
    inner = (normed @ weights[f"{name}.feed_forward.inner.weight"].T).clamp(min=0)
    return inner @ weights[f"{name}.feed_forward.output.weight"].T


def _bias(weights: Weights, side: str, n_tokens: int) -> Tensor:
    """Shape (heads, tokens, tokens), -inf where the decoder does not look."""
    distances = [[key - query for key in range(n_tokens)] for query in range(n_tokens)]
    places = torch.tensor([[_bucket(k, side) for k in row] for row in distances])
    bias = weights[f"{side}_bias.weight"][places].permute(2, 0, 1)
    if side == "encoder":
        return bias
    return bias.masked_fill(torch.tensor(distances) > 0, -math.inf)


def _bucket(k: int, side: str) -> int:
    n, m = (32, max(-k, 0)) if side == "decoder" else (16, abs(k))
    first = 16 if side == "encoder" and k > 0 else 0
    if m < n / 2:
        return first + m
    share = math.log(2 * m / n) / math.log(128 / (n / 2))
    return first + min(n - 1, n // 2 + math.floor(n / 2 * share))


def _map(weights: Weights, name: str, z: Tensor) -> Tensor:
    return z @ weights[f"{name}.weight"].T + weights[f"{name}.bias"]


def _layer_norm(weights: Weights, name: str, z: Tensor) -> Tensor:
    centred = z - z.mean(-1, keepdim=True)
    deviation = ((centred**2).mean(-1, keepdim=True) + 1e-5).sqrt()
    return centred / deviation * weights[f"{name}.weight"] + weights[f"{name}.bias"]


def _rms_norm(z: Tensor, scale: Tensor) -> Tensor:
    return z / ((z**2).mean(-1, keepdim=True) + 1e-6).sqrt() * scale


def _cross_entropies(logits: Tensor, labels: Sequence[int]) -> Tensor:
    rows = torch.arange(len(labels))
    return logits.logsumexp(-1) - logits[rows, list(labels)]
