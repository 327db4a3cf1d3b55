"""A GPT, a Llama and a T5 in plain operations of torch, one row at a time, with their gradients.

Written from docs/models.md; shares no code with the package.
"""

import math
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

Weights = Mapping[str, Tensor]
Model = Mapping[str, Any]
"""The [model] table; a Llama's with every default filled in."""


def gpt_row(weights: Weights, model: Model, read: Sequence[int], labels: Sequence[int]) -> Tensor:
    """The cross entropy of every label of a row, whose position 0 reads `read[0]`."""
    epsilon = model.get("norm_epsilon", 1e-5)
    z = weights["embedding.tokens.weight"][list(read)]
    z = z + weights["embedding.positions.weight"][: len(read)]
    for i in range(model["n_layers"]):
        name, d = f"layers.{i}", model["hidden_size"] // model["n_heads"]
        normed = _layer_norm(weights, f"{name}.attention_norm", z, epsilon)
        q, k, v = _map(weights, f"{name}.attention.query_key_value", normed).chunk(3, dim=1)
        mixed = _attention(q / math.sqrt(d), k, v, model["n_heads"], _unseen(len(read)))
        z = z + _map(weights, f"{name}.attention.output", mixed)
        normed = _layer_norm(weights, f"{name}.feed_forward_norm", z, epsilon)
        inner = _gelu(_map(weights, f"{name}.feed_forward.inner", normed))
        z = z + _map(weights, f"{name}.feed_forward.output", inner)
    normed = _layer_norm(weights, "head.norm", z, epsilon)
    vectors = weights.get("head.logits.weight", weights["embedding.tokens.weight"])
    return _cross_entropies(normed @ vectors.T, labels)


def gpt_losses(
    weights: Weights, model: Model, inputs: Sequence[int], targets: Sequence[int], start: int
) -> Tensor:
    """The cross entropy of every target token."""
    labels = [*inputs, *targets]
    return gpt_row(weights, model, [start, *labels[:-1]], labels)[len(inputs) :]


def llama_row(weights: Weights, model: Model, read: Sequence[int], labels: Sequence[int]) -> Tensor:
    """As `gpt_row`."""
    z, size = weights["embedding.tokens.weight"][list(read)], model["head_size"]
    epsilon = model["norm_epsilon"]
    angles = [[i * _angle(pair, model) for pair in range(size // 2)] for i in range(len(read))]
    turned = torch.tensor(angles, dtype=torch.float64)
    turns = torch.polar(torch.full_like(turned, _length_factor(model)), turned)
    for i in range(model["n_layers"]):
        name = f"layers.{i}.attention"
        normed = _rms_norm(z, weights[f"{name}_norm.weight"], epsilon)
        q, k, v = (_map(weights, f"{name}.{each}", normed) for each in ("query", "key", "value"))
        q, k, v = (each.view(len(read), -1, size) for each in (q, k, v))
        if model["qk_norm"]:
            q = _rms_norm(q, weights[f"{name}.query_norm.weight"], epsilon)
            k = _rms_norm(k, weights[f"{name}.key_norm.weight"], epsilon)
        q, k = (_turned(each, turns) for each in (q, k))
        n_shared = model["n_heads"] // model["n_kv_heads"]
        k, v = (each.repeat_interleave(n_shared, 1).flatten(1) for each in (k, v))
        q = q.flatten(1) / math.sqrt(size)
        mixed = _attention(q, k, v, model["n_heads"], _unseen(len(read)))
        z = z + _map(weights, f"{name}.output", mixed)
        name = f"layers.{i}.feed_forward"
        normed = _rms_norm(z, weights[f"{name}_norm.weight"], epsilon)
        gate, values = _map(weights, f"{name}.inner", normed).chunk(2, dim=1)
        z = z + _map(weights, f"{name}.output", gate / (1 + torch.exp(-gate)) * values)
    name = "embedding.tokens.weight" if model["tied_head"] else "head.logits.weight"
    normed = _rms_norm(z, weights["head.norm.weight"], epsilon)
    return _cross_entropies(normed @ weights[name].T, labels)


def t5_losses(
    weights: Weights, model: Model, inputs: Sequence[int], targets: Sequence[int], start: int
) -> Tensor:
    """The cross entropy of every target token."""
    vectors, epsilon = weights["embedding.weight"], model.get("norm_epsilon", 1e-6)
    z = vectors[list(inputs) or [start]]
    for i in range(model["n_layers"]):
        z = z + _self_attention(weights, model, "encoder", i, z)
        z = z + _feed_forward(weights, f"encoder.{i}", z, epsilon)
    encoded = _rms_norm(z, weights["encoder_norm.weight"], epsilon)
    z = vectors[[start, *targets[:-1]]]
    for i in range(model.get("n_decoder_layers") or model["n_layers"]):
        z = z + _self_attention(weights, model, "decoder", i, z)
        normed = _rms_norm(z, weights[f"decoder.{i}.cross_attention_norm.weight"], epsilon)
        z = z + _t5_attention(weights, model, f"decoder.{i}.cross_attention", normed, encoded, 0.0)
        z = z + _feed_forward(weights, f"decoder.{i}", z, epsilon)
    z = _rms_norm(z, weights["decoder_norm.weight"], epsilon)
    if "head.logits.weight" in weights:
        vectors = weights["head.logits.weight"]
    elif model.get("scale_decoder_outputs") is not False:
        z = z / math.sqrt(model["hidden_size"])
    return _cross_entropies(z @ vectors.T, targets)


def _self_attention(weights: Weights, model: Model, side: str, i: int, z: Tensor) -> Tensor:
    """With a bias of shape (heads, tokens, tokens), -inf where the decoder does not look."""
    table = weights[f"{side}_bias.weight"]
    distances = [[key - query for key in range(len(z))] for query in range(len(z))]
    sizes = len(table), model.get("max_distance", 128)
    places = torch.tensor([[bucket(k, side, *sizes) for k in row] for row in distances])
    bias = table[places].permute(2, 0, 1)
    if side == "decoder":
        bias = bias + _unseen(len(z))
    epsilon = model.get("norm_epsilon", 1e-6)
    normed = _rms_norm(z, weights[f"{side}.{i}.attention_norm.weight"], epsilon)
    return _t5_attention(weights, model, f"{side}.{i}.attention", normed, normed, bias)


def _t5_attention(
    weights: Weights, model: Model, name: str, z: Tensor, source: Tensor, bias: Tensor | float
) -> Tensor:
    q = _map(weights, f"{name}.query", z)
    k, v = _map(weights, f"{name}.key_value", source).chunk(2, dim=1)
    return _map(weights, f"{name}.output", _attention(q, k, v, model["n_heads"], bias))


def bucket(distance: int, side: str, n: int = 32, max_distance: int = 128) -> int:
    """Of a key's position minus a query's; by comparing with the bounds of buckets one by one."""
    if side == "encoder":
        first = n // 2 if distance > 0 else 0
        return first + _of_far(abs(distance), n // 2, max_distance)
    return _of_far(max(-distance, 0), n, max_distance)


def _of_far(far: int, n: int, max_distance: int) -> int:
    n_single = n // 2
    if far < n_single:
        return far
    n_shared = n - n_single
    ratio = max_distance / n_single
    bounds: list[float] = [n_single * ratio ** (k / n_shared) for k in range(1, n_shared)]
    return n_single + sum(far >= bound * (1 - 1e-7) for bound in bounds)


def _feed_forward(weights: Weights, name: str, z: Tensor, epsilon: float) -> Tensor:
    """A ReLU, or where there is twice the width the GELU of one half times the other."""
    normed = _rms_norm(z, weights[f"{name}.feed_forward_norm.weight"], epsilon)
    inner = _map(weights, f"{name}.feed_forward.inner", normed)
    width = weights[f"{name}.feed_forward.output.weight"].shape[1]
    if inner.shape[1] == width:
        inner = inner.clamp(min=0)
    else:
        inner = _gelu(inner[:, :width]) * inner[:, width:]
    return _map(weights, f"{name}.feed_forward.output", inner)


def _attention(q: Tensor, k: Tensor, v: Tensor, n_heads: int, added: Tensor | float) -> Tensor:
    """The heads' outputs, one behind the other; `added` to scores (heads or 1, tokens, source)."""
    q, k, v = (x.view(len(x), n_heads, -1).transpose(0, 1) for x in (q, k, v))
    return (q @ k.mT + added).softmax(-1).matmul(v).transpose(0, 1).flatten(1)


def _unseen(n_tokens: int) -> Tensor:
    """Numbers that hide later tokens."""
    return torch.full((n_tokens, n_tokens), -math.inf).triu(1)


def _turned(vectors: Tensor, turns: Tensor) -> Tensor:
    """Every pair, as a complex number, times the turn of its position; shape (tokens, heads, d)."""
    pairs = torch.complex(*vectors.chunk(2, dim=-1)) * turns[:, None]
    return torch.cat([pairs.real, pairs.imag], -1)


def _angle(pair: int, model: Model) -> float:
    """By how much a pair of numbers is turned from one position to the next."""
    per_position: float = model["rope_theta"] ** (-2 * pair / model["head_size"])
    scaling = model["rope_scaling"]
    if scaling is None:
        return per_position
    slow: float = per_position / scaling["factor"]
    if scaling["kind"] == "linear":
        return slow
    if scaling["kind"] == "yarn":
        divided = _share_of_yarn(pair, model)
        return divided * slow + (1 - divided) * per_position
    wavelength = 2 * math.pi / per_position
    longest = scaling["original_max_tokens"] / scaling["low_freq_factor"]
    shortest = scaling["original_max_tokens"] / scaling["high_freq_factor"]
    if wavelength > longest:
        return slow
    if wavelength < shortest:
        return per_position
    n_turns = scaling["original_max_tokens"] / wavelength
    share: float = (n_turns - scaling["low_freq_factor"]) / (
        scaling["high_freq_factor"] - scaling["low_freq_factor"]
    )
    return (1 - share) * slow + share * per_position


def _length_factor(model: Model) -> float:
    """By how much turning makes queries and keys longer."""
    scaling = model["rope_scaling"]
    if scaling is None or scaling["kind"] != "yarn":
        return 1.0
    return scaling["attention_factor"] or 1 + math.log(scaling["factor"]) / 10


def _share_of_yarn(pair: int, model: Model) -> float:
    """Share of a pair's angle that is divided: 0 for fast pairs, 1 for slow ones."""
    scaling = model["rope_scaling"]
    places = []
    for name in ("beta_fast", "beta_slow"):
        # theta ** (-2 place / size) x longest row = turns x 2 pi
        angle = scaling[name] * 2 * math.pi / scaling["original_max_tokens"]
        places.append(-math.log(angle) / math.log(model["rope_theta"]) * model["head_size"] / 2)
    fast, slow = places
    if scaling["truncate"]:
        fast, slow = math.floor(fast), math.ceil(slow)
    fast, slow = max(fast, 0), min(slow, model["head_size"] - 1)
    if pair <= fast:
        return 0.0
    return 1.0 if pair >= slow else (pair - fast) / (slow - fast)


def _map(weights: Weights, name: str, z: Tensor) -> Tensor:
    product = z @ weights[f"{name}.weight"].T
    return product + weights[f"{name}.bias"] if f"{name}.bias" in weights else product


def _gelu(u: Tensor) -> Tensor:
    """By the approximation with a hyperbolic tangent."""
    return u / 2 * (1 + torch.tanh(math.sqrt(2 / math.pi) * (u + 0.044715 * u**3)))


def _layer_norm(weights: Weights, name: str, z: Tensor, epsilon: float) -> Tensor:
    centred = z - z.mean(-1, keepdim=True)
    deviation = ((centred**2).mean(-1, keepdim=True) + epsilon).sqrt()
    return centred / deviation * weights[f"{name}.weight"] + weights[f"{name}.bias"]


def _rms_norm(z: Tensor, scale: Tensor, epsilon: float) -> Tensor:
    return z / ((z**2).mean(-1, keepdim=True) + epsilon).sqrt() * scale


def _cross_entropies(logits: Tensor, labels: Sequence[int]) -> Tensor:
    rows = torch.arange(len(labels))
    return logits.logsumexp(-1) - logits[rows, list(labels)]
