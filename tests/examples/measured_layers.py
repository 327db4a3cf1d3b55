"""A cost table whose entries one can compute by hand."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np

from dynapipe_hpc.architecture.decoder import GptShape
from dynapipe_hpc.architecture.model_shape import ModelShape
from dynapipe_hpc.architecture.part import EMBEDDING, HEAD, LAYER
from dynapipe_hpc.architecture.t5 import DECODER, DECODER_SIDE, ENCODER, ENCODER_SIDE, T5Shape
from dynapipe_hpc.data.microbatch import Layout
from dynapipe_hpc.plan.cluster import Link
from dynapipe_hpc.planner.cost.cost_model import FloatArray
from dynapipe_hpc.planner.cost.stage_parts import STAGE
from dynapipe_hpc.planner.cost.table.profile_table import (
    LayerKey,
    LayerProfile,
    ProfileTable,
    UpdateProfile,
    fingerprint_of,
)

SHAPE = GptShape(n_layers=6, hidden_size=8, n_heads=2, ffn_size=32, vocab_size=50, max_tokens=1024)
T5_SHAPE = T5Shape(
    n_layers=3, hidden_size=8, n_heads=2, head_size=16, ffn_size=32, vocab_size=50, max_tokens=1024
)
ROWS = np.array([1, 2, 4, 8])
ROW_TOKENS = np.array([16, 32, 64])
# Per padded token, by kind: forward and backward take it as ms, memory as bytes.
PER_TOKEN = {STAGE: 0.0, LAYER: 1.0, EMBEDDING: 0.5, HEAD: 3.0}


def linear_grid(per_token: float) -> FloatArray:
    """Proportional to padded tokens, and NaN beyond 256."""
    tokens = np.outer(ROWS, ROW_TOKENS).astype(np.float64)
    tokens[tokens > 256] = np.nan
    return per_token * tokens


def linear_layer(per_token: float, parameter_bytes: float = 100.0) -> LayerProfile:
    """Backward is twice forward; stored, and both transients, ten times as many bytes as ms."""
    grid = linear_grid(per_token)
    return LayerProfile(
        parameter_bytes, (ROWS, ROW_TOKENS), grid, 2 * grid, 10 * grid, 10 * grid, 20 * grid
    )


def linear_decoder(per_token: float, parameter_bytes: float = 200.0) -> LayerProfile:
    """As `linear_layer`, but on three axes, and proportional to tokens of both sides together."""
    tokens = ROWS[:, None, None] * (ROW_TOKENS[:, None] + ROW_TOKENS).astype(np.float64)
    grid = per_token * np.where(tokens > 512, np.nan, tokens)
    axes = (ROWS, ROW_TOKENS, ROW_TOKENS)
    return LayerProfile(parameter_bytes, axes, grid, 2 * grid, 10 * grid, 10 * grid, 20 * grid)


def with_packed(table: ProfileTable, factor: float) -> ProfileTable:
    """The table with packed rows besides, all of whose layers take as much times a factor."""
    layers = dict(table.layers)
    for key, layer in table.layers.items():
        grids: dict[str, Any] = {name: factor * grid for name, grid in layer.grids.items()}
        layers[key._replace(layout=Layout.PACKED.text)] = replace(layer, **grids)
    return replace(table, layers=layers)


def with_halves(table: ProfileTable) -> ProfileTable:
    """The table with halves of backward passes: of layers' in equal parts, and without more."""
    layers = {
        key: replace(layer, input_ms=layer.forward_ms, weight_ms=layer.forward_ms)
        if key.kind == LAYER
        else layer
        for key, layer in table.layers.items()
    }
    return replace(table, layers=layers)


def linear_t5_table(recompute: str = "none", **layers: LayerProfile) -> ProfileTable:
    """All kinds of layers of `T5_SHAPE`, some of them replaced."""
    linear = {kind: linear_layer(PER_TOKEN[kind]) for kind in (EMBEDDING, HEAD)}
    linear[STAGE] = linear_layer(PER_TOKEN[STAGE], 0.0)
    sides = {ENCODER_SIDE: linear_layer(0.25, 0.0), DECODER_SIDE: linear_decoder(0.25, 0.0)}
    both = {ENCODER: linear_layer(1.0), DECODER: linear_decoder(1.0)}
    every = {**linear, **both, **sides, **layers}
    keys = {LayerKey(1, recompute, kind): layer for kind, layer in every.items()}
    return replace(linear_table(), model=fingerprint_of(T5_SHAPE), layers=keys)


def linear_table_of(
    shape: ModelShape, element_bytes: int, provenance: Mapping[str, str]
) -> ProfileTable:
    """All kinds of layers of a decoder-only model, in both layouts and without recomputation."""
    layers = {}
    for kind, per_token in PER_TOKEN.items():
        numbers = shape.weights()[kind].n_numbers if kind in shape.weights() else 0
        for layout in (Layout.PADDED, Layout.PACKED):
            layer = linear_layer(per_token, float(element_bytes * numbers))
            layers[LayerKey(1, "none", kind, layout.text)] = layer
    return replace(
        linear_table(),
        model=fingerprint_of(shape),
        layers=layers,
        element_bytes=element_bytes,
        provenance=provenance,
    )


def linear_table(recompute: str = "none", **layers: LayerProfile) -> ProfileTable:
    """All kinds of layers of `SHAPE`, some of them replaced."""
    every = {kind: linear_layer(per_token) for kind, per_token in PER_TOKEN.items()} | layers
    return ProfileTable(
        model=fingerprint_of(SHAPE),
        layers={LayerKey(1, recompute, kind): layer for kind, layer in every.items()},
        element_bytes=4,
        state_factor=4.0,
        update=UpdateProfile(reduce_ms_per_byte=0.5, optimizer_ms_per_byte=0.25),
        link=Link(latency_ms=0.5, bytes_per_ms=1e5),
        provenance={"source": "made up"},
    )
