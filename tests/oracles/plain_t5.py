"""A T5 written out in numpy, one sample and one head at a time."""

import math
from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[np.float64]
Weights = Mapping[str, Array]


class Settings(NamedTuple):
    """Settings of a T5 that its weights do not tell."""

    n_heads: int
    epsilon: float
    max_distance: int


def losses(
    weights: Weights,
    n_layers: int,
    n_heads: int,
    inputs: Sequence[int],
    targets: Sequence[int],
    start_id: int,
    *,
    n_decoder_layers: int | None = None,
    epsilon: float = 1e-6,
    max_distance: int = 128,
    scaled: bool = True,
) -> list[float]:
    """The cross entropy of every target token of one sample, in float64."""
    settings = Settings(n_heads, epsilon, max_distance)
    encoded = weights["embedding.weight"][list(inputs)]
    for i in range(n_layers):
        encoded = _layer(weights, f"encoder.{i}", encoded, None, settings)
    encoded = _norm(encoded, weights["encoder_norm.weight"], epsilon)
    decoded = weights["embedding.weight"][[start_id, *targets[:-1]]]
    for i in range(n_decoder_layers or n_layers):
        decoded = _layer(weights, f"decoder.{i}", decoded, encoded, settings)
    decoded = _norm(decoded, weights["decoder_norm.weight"], epsilon)
    found = []
    for hidden, target in zip(decoded, targets, strict=True):
        if "head.logits.weight" in weights:
            logits = weights["head.logits.weight"] @ hidden
        else:
            logits = weights["embedding.weight"] @ hidden
            logits = logits / math.sqrt(len(hidden)) if scaled else logits
        found.append(math.log(sum(math.exp(x) for x in logits)) - float(logits[target]))
    return found


def _layer(
    weights: Weights, name: str, hidden: Array, encoded: Array | None, settings: Settings
) -> Array:
    side = "encoder" if encoded is None else "decoder"
    table = weights[f"{side}_bias.weight"]
    normed = _norm(hidden, weights[f"{name}.attention_norm.weight"], settings.epsilon)
    part = f"{name}.attention"
    hidden = hidden + _attention(weights, part, normed, normed, settings, table, side)
    if encoded is not None:
        normed = _norm(hidden, weights[f"{name}.cross_attention_norm.weight"], settings.epsilon)
        part = f"{name}.cross_attention"
        hidden = hidden + _attention(weights, part, normed, encoded, settings, None, side)
    normed = _norm(hidden, weights[f"{name}.feed_forward_norm.weight"], settings.epsilon)
    inner = normed @ weights[f"{name}.feed_forward.inner.weight"].T
    output = weights[f"{name}.feed_forward.output.weight"].T
    return hidden + _activated(inner, len(output)) @ output


def _activated(inner: Array, width: int) -> Array:
    """A ReLU, or where there is twice the width the GELU of one half times the other."""
    if inner.shape[1] == width:
        return np.maximum(inner, 0)
    found = np.zeros((len(inner), width))
    for i, row in enumerate(inner):
        for k, (gate, value) in enumerate(zip(row[:width], row[width:], strict=True)):
            cubic = math.sqrt(2 / math.pi) * (gate + 0.044715 * gate**3)
            found[i, k] = gate / 2 * (1 + math.tanh(cubic)) * value
    return found


def _norm(hidden: Array, scale: Array, epsilon: float) -> Array:
    squares = [sum(x * x for x in h) / len(h) for h in hidden]
    return np.array(
        [h / math.sqrt(s + epsilon) * scale for h, s in zip(hidden, squares, strict=True)]
    )


def _attention(
    weights: Weights,
    name: str,
    hidden: Array,
    source: Array,
    settings: Settings,
    table: Array | None,
    side: str,
) -> Array:
    queries = hidden @ weights[f"{name}.query.weight"].T
    keys, values = np.split(source @ weights[f"{name}.key_value.weight"].T, 2, axis=1)
    size = queries.shape[1] // settings.n_heads
    mixed = np.zeros_like(queries)
    for head in range(settings.n_heads):
        at = slice(head * size, (head + 1) * size)
        for i, query in enumerate(queries[:, at]):
            n_seen = i + 1 if table is not None and side == "decoder" else len(source)
            scores = [float(query @ key) for key in keys[:n_seen, at]]
            if table is not None:
                places = [
                    bucket(j - i, side, len(table), settings.max_distance) for j in range(n_seen)
                ]
                scores = [s + table[p, head] for p, s in zip(places, scores, strict=True)]
            exact = [math.exp(s) for s in scores]
            share = sum(e * value for e, value in zip(exact, values[:n_seen, at], strict=True))
            mixed[i, at] = share / sum(exact)
    return mixed @ weights[f"{name}.output.weight"].T


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
