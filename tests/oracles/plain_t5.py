"""A T5 written out in numpy, one sample and one head at a time."""

import math
from collections.abc import Mapping, Sequence

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[np.float64]
Weights = Mapping[str, Array]


def losses(
    weights: Weights,
    n_layers: int,
    n_heads: int,
    inputs: Sequence[int],
    targets: Sequence[int],
    start_id: int,
) -> list[float]:
    """The cross entropy of every target token of one sample, in float64."""
    encoded = weights["embedding.weight"][list(inputs)]
    for i in range(n_layers):
        encoded = _layer(weights, f"encoder.{i}", encoded, None, n_heads)
    encoded = _norm(encoded, weights["encoder_norm.weight"])
    decoded = weights["embedding.weight"][[start_id, *targets[:-1]]]
    for i in range(n_layers):
        decoded = _layer(weights, f"decoder.{i}", decoded, encoded, n_heads)
    decoded = _norm(decoded, weights["decoder_norm.weight"])
    found = []
    for hidden, target in zip(decoded, targets, strict=True):
        logits = weights["embedding.weight"] @ hidden / math.sqrt(len(hidden))
        found.append(math.log(sum(math.exp(x) for x in logits)) - float(logits[target]))
    return found


def _layer(
    weights: Weights, name: str, hidden: Array, encoded: Array | None, n_heads: int
) -> Array:
    side = "encoder" if encoded is None else "decoder"
    table = weights[f"{side}_bias.weight"]
    normed = _norm(hidden, weights[f"{name}.attention_norm.weight"])
    part = f"{name}.attention"
    hidden = hidden + _attention(weights, part, normed, normed, n_heads, table, side)
    if encoded is not None:
        normed = _norm(hidden, weights[f"{name}.cross_attention_norm.weight"])
        part = f"{name}.cross_attention"
        hidden = hidden + _attention(weights, part, normed, encoded, n_heads, None, side)
    normed = _norm(hidden, weights[f"{name}.feed_forward_norm.weight"])
    inner = normed @ weights[f"{name}.feed_forward.inner.weight"].T
    return hidden + np.maximum(inner, 0) @ weights[f"{name}.feed_forward.output.weight"].T


def _norm(hidden: Array, scale: Array) -> Array:
    return np.array([h / math.sqrt(sum(x * x for x in h) / len(h) + 1e-6) * scale for h in hidden])


def _attention(
    weights: Weights,
    name: str,
    hidden: Array,
    source: Array,
    n_heads: int,
    table: Array | None,
    side: str,
) -> Array:
    queries = hidden @ weights[f"{name}.query.weight"].T
    keys, values = np.split(source @ weights[f"{name}.key_value.weight"].T, 2, axis=1)
    size = queries.shape[1] // n_heads
    mixed = np.zeros_like(queries)
    for head in range(n_heads):
        at = slice(head * size, (head + 1) * size)
        for i, query in enumerate(queries[:, at]):
            n_seen = i + 1 if table is not None and side == "decoder" else len(source)
            scores = [float(query @ key) for key in keys[:n_seen, at]]
            if table is not None:
                scores = [s + table[bucket(j - i, side), head] for j, s in enumerate(scores)]
            exact = [math.exp(s) for s in scores]
            share = sum(e * value for e, value in zip(exact, values[:n_seen, at], strict=True))
            mixed[i, at] = share / sum(exact)
    return mixed @ weights[f"{name}.output.weight"].T


def bucket(distance: int, side: str) -> int:
    """Of a key's position minus a query's; by comparing with the bounds of buckets one by one."""
    if side == "encoder":
        return (16 if distance > 0 else 0) + _of_far(abs(distance), 16)
    return _of_far(max(-distance, 0), 32)


def _of_far(far: int, n: int) -> int:
    half = n // 2
    if far < half:
        return far
    ratio = 128 / half
    bounds: list[float] = [half * ratio ** (k / half) for k in range(1, half)]
    return half + sum(far >= bound * (1 - 1e-12) for bound in bounds)
