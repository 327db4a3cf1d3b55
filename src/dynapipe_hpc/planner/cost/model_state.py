"""Bytes on a rank: weights, gradients, optimizer state, and keys and values of slices."""

from collections.abc import Mapping
from typing import NamedTuple

import numpy as np

from dynapipe_hpc.architecture.model_shape import ModelShape
from dynapipe_hpc.architecture.part import Weights
from dynapipe_hpc.architecture.placement import Placement
from dynapipe_hpc.plan.cluster import Cluster
from dynapipe_hpc.planner.cost.cost_model import FloatArray, SliceMemory
from dynapipe_hpc.planner.cost.stage_parts import parts_of_stages

GRADIENT_BYTES = 4  # gradients, also of keys and values, are added up in float32 at least


def state_factor(element_bytes: int) -> float:
    """Bytes of weights, gradients and AdamW's moments per byte of weights, without ZeRO.

    Weights of less than 32 bits have gradients, moments and copies of the weights in float32.
    """
    wide = max(GRADIENT_BYTES, element_bytes)
    copy = 0 if wide == element_bytes else wide
    return (element_bytes + copy + 3 * wide) / element_bytes


def state_factor_of_rank(state_factor: float, element_bytes: int, cluster: Cluster) -> float:
    """Bytes of weights, gradients and optimizer state on a rank, per byte of its weights.

    With `cluster.zero_stage` 1, replicas partition the optimizer state, float32 copies of 16-bit
    weights included; each replica has all weights and gradients.

    `state_factor`: Factor without ZeRO. `element_bytes`: Bytes per number of a weight. Source:
    Rajbhandari et al., "ZeRO", SC 2020, section 5.1.
    """
    if cluster.zero_stage == 0:
        return state_factor
    kept = factor_of_copies(element_bytes)
    return kept + max(0.0, state_factor - kept) / cluster.n_replicas


def factor_of_copies(element_bytes: int) -> float:
    """Bytes of weights and gradients per byte of weights, where another stage updates them."""
    return 1 + max(GRADIENT_BYTES, element_bytes) / element_bytes


class HeldWeights(NamedTuple):
    """Bytes of weights on a shard of every stage, shape (n_stages,)."""

    own: FloatArray
    copied: FloatArray
    frozen: FloatArray


def held_weights(
    parameter_bytes: Mapping[str, float],
    shape: ModelShape,
    placement: Placement,
    n_shards: int,
) -> HeldWeights:
    """Weights of a model on every stage.

    A tied weight belongs to the first stage that holds it. A stage holds it once, however many of
    its parts use it (docs/decisions/0011).

    `parameter_bytes`: Bytes of the weights of one part by kind; the head's include the embedding's
    bytes.
    """
    weights = shape.weights(n_shards)
    frozen_bytes = {
        kind: parameter_bytes[kind] * n_frozen / n_numbers
        for kind, (n_numbers, n_frozen, _) in weights.items()
    }
    trained_bytes = {kind: n - frozen_bytes.get(kind, 0) for kind, n in parameter_bytes.items()}
    own, copied = _held_once(trained_bytes, shape, placement, weights)
    frozen = np.sum(_held_once(frozen_bytes, shape, placement, weights), axis=0)
    return HeldWeights(own, copied, frozen)


def _held_once(
    parameter_bytes: Mapping[str, float],
    shape: ModelShape,
    placement: Placement,
    weights: Mapping[str, Weights],
) -> tuple[FloatArray, FloatArray]:
    """Weights on every stage: first copies, and all further ones."""
    counts = parts_of_stages(shape, placement)
    own: FloatArray = np.sum([counts[kind] * n for kind, n in parameter_bytes.items()], axis=0)
    copied = np.zeros_like(own)
    for kinds in shape.tied.values():
        uses: FloatArray = np.sum([counts[kind] for kind in kinds], axis=0)
        tied, owner = weights[kinds[0]], np.flatnonzero(uses)[0]
        n_bytes = parameter_bytes[kinds[0]] * tied.n_first / tied.n_numbers
        own -= n_bytes * uses
        own[owner] += n_bytes
        copied += n_bytes * uses.clip(max=1)
        copied[owner] -= n_bytes
    return own, copied


def slice_memory(
    shape: ModelShape, placement: Placement, n_shards: int, *, element_bytes: int
) -> SliceMemory:
    """Memory of the slices of a sample on every stage."""
    n_layers = np.array([float(len(layers)) for layers in placement.layers])

    def on_stages(width: int, bytes_each: int) -> FloatArray:
        return n_layers * (width / n_shards * bytes_each)

    return SliceMemory(
        kept=on_stages(shape.cache_width, element_bytes),
        sums=on_stages(shape.cache_width, max(element_bytes, GRADIENT_BYTES)),
        spared=on_stages(shape.spared_width, element_bytes),
    )
