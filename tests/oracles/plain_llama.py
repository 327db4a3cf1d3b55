"""A Llama written out in numpy, one row, one head, one position and one pair at a time."""

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[np.float64]
Weights = Mapping[str, Array]
Model = Mapping[str, Any]
"""The [model] table, with every default filled in."""


def losses(
    weights: Weights, model: Model, tokens: Sequence[int], labels: Sequence[int]
) -> list[float]:
    """The cross entropy of every label of one row, in float64; position 0 reads `tokens[0]`."""
    hidden = np.array([weights["embedding.tokens.weight"][token] for token in tokens])
    for i in range(model["n_layers"]):
        hidden = _layer(weights, f"layers.{i}", hidden, model)
    name = "embedding.tokens.weight" if model["tied_head"] else "head.logits.weight"
    normed = _norm(weights["head.norm.weight"], hidden, model)
    found = []
    for position, label in enumerate(labels):
        logits = weights[name] @ normed[position]
        found.append(math.log(sum(math.exp(x) for x in logits)) - float(logits[label]))
    return found


def angle_of_pair(pair: int, model: Model) -> float:
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


def length_factor(model: Model) -> float:
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


def _layer(weights: Weights, name: str, hidden: Array, model: Model) -> Array:
    normed = _norm(weights[f"{name}.attention_norm.weight"], hidden, model)
    hidden = hidden + _attention(weights, f"{name}.attention", normed, model)
    normed = _norm(weights[f"{name}.feed_forward_norm.weight"], hidden, model)
    gate, values = np.split(normed @ weights[f"{name}.feed_forward.inner.weight"].T, 2, axis=1)
    product: Array = gate / (1 + np.exp(-gate)) * values
    return hidden + product @ weights[f"{name}.feed_forward.output.weight"].T


def _attention(weights: Weights, name: str, hidden: Array, model: Model) -> Array:
    size, n_heads = model["head_size"], model["n_heads"]
    queries, keys, values = (_map(weights, f"{name}.{each}", hidden) for each in _MAPS)
    mixed = np.zeros((len(hidden), n_heads * size))
    for head in range(n_heads):
        at = slice(head * size, (head + 1) * size)
        source = head * model["n_kv_heads"] // n_heads
        of_source = slice(source * size, (source + 1) * size)
        query, key = queries[:, at], keys[:, of_source]
        if model["qk_norm"]:
            query = _norm(weights[f"{name}.query_norm.weight"], query, model)
            key = _norm(weights[f"{name}.key_norm.weight"], key, model)
        query, key = _turned(query, model), _turned(key, model)
        for i in range(len(hidden)):
            exact = [math.exp(float(query[i] @ key[j]) / math.sqrt(size)) for j in range(i + 1)]
            for j, each in enumerate(exact):
                mixed[i, at] += each / sum(exact) * values[j, of_source]
    return _map(weights, f"{name}.output", mixed)


_MAPS = ("query", "key", "value")


def _turned(vectors: Array, model: Model) -> Array:
    """Every pair, as a complex number, times a power of i that grows with the position."""
    turned, half = np.empty_like(vectors), vectors.shape[1] // 2
    for position, vector in enumerate(vectors):
        for pair in range(half):
            angle = position * angle_of_pair(pair, model)
            number = complex(vector[pair], vector[pair + half]) * np.exp(1j * angle)
            number *= length_factor(model)
            turned[position, pair], turned[position, pair + half] = number.real, number.imag
    return turned


def _map(weights: Weights, name: str, values: Array) -> Array:
    product: Array = values @ weights[f"{name}.weight"].T
    return product + weights[f"{name}.bias"] if f"{name}.bias" in weights else product


def _norm(scales: Array, hidden: Array, model: Model) -> Array:
    rows = [h / math.sqrt(sum(h**2) / len(h) + model["norm_epsilon"]) * scales for h in hidden]
    return np.array(rows)
