"""A GPT written out in numpy, one row, one head and one position at a time."""

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
    tokens: Sequence[int],
    labels: Sequence[int],
    epsilon: float = 1e-5,
) -> list[float]:
    """The cross entropy of every label of one row, in float64; position 0 reads `tokens[0]`."""
    hidden = np.array(
        [
            weights["embedding.tokens.weight"][token] + weights["embedding.positions.weight"][i]
            for i, token in enumerate(tokens)
        ]
    )
    for i in range(n_layers):
        hidden = _layer(weights, f"layers.{i}", hidden, n_heads, epsilon)
    found = []
    vectors = weights.get("head.logits.weight", weights["embedding.tokens.weight"])
    for normed, label in zip(_norm(weights, "head.norm", hidden, epsilon), labels, strict=True):
        logits = vectors @ normed
        found.append(math.log(sum(math.exp(x) for x in logits)) - float(logits[label]))
    return found


def _layer(weights: Weights, name: str, hidden: Array, n_heads: int, epsilon: float) -> Array:
    normed = _norm(weights, f"{name}.attention_norm", hidden, epsilon)
    hidden = hidden + _attention(weights, f"{name}.attention", normed, n_heads)
    normed = _norm(weights, f"{name}.feed_forward_norm", hidden, epsilon)
    inner = _linear(weights, f"{name}.feed_forward.inner", normed)
    return hidden + _linear(weights, f"{name}.feed_forward.output", _gelu(inner))


def _attention(weights: Weights, name: str, hidden: Array, n_heads: int) -> Array:
    projected = _linear(weights, f"{name}.query_key_value", hidden)
    queries, keys, values = np.split(projected, 3, axis=1)
    size = queries.shape[1] // n_heads
    mixed = np.zeros_like(queries)
    for head in range(n_heads):
        at = slice(head * size, (head + 1) * size)
        for i, query in enumerate(queries[:, at]):
            seen = range(i + 1)
            exact = [math.exp(float(query @ keys[j, at]) / math.sqrt(size)) for j in seen]
            mixed[i, at] = sum(exact[j] * values[j, at] for j in seen) / sum(exact)
    return _linear(weights, f"{name}.output", mixed)


def _linear(weights: Weights, name: str, values: Array) -> Array:
    product: Array = values @ weights[f"{name}.weight"].T + weights[f"{name}.bias"]
    return product


def _norm(weights: Weights, name: str, hidden: Array, epsilon: float) -> Array:
    rows = []
    for h in hidden:
        mean = sum(h) / len(h)
        variance = sum((x - mean) ** 2 for x in h) / len(h)
        scaled = (h - mean) / math.sqrt(variance + epsilon)
        rows.append(scaled * weights[f"{name}.weight"] + weights[f"{name}.bias"])
    return np.array(rows)


def _gelu(values: Array) -> Array:
    """By the approximation with a hyperbolic tangent."""
    inner = math.sqrt(2 / math.pi) * (values + 0.044715 * values**3)
    result: Array = values * (1 + np.tanh(inner)) / 2
    return result
