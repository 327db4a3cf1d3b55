"""Layer profiles of a cost table, from measured stacks."""

import math
from collections.abc import Mapping, Sequence

import numpy as np

from dynapipe_hpc.architecture.part import EMBEDDING, HEAD, LAYER, Boundary
from dynapipe_hpc.architecture.t5 import DECODER, DECODER_SIDE, ENCODER, ENCODER_SIDE
from dynapipe_hpc.data.microbatch import ExecutionMode
from dynapipe_hpc.experiment.checks import kinds_with_halves
from dynapipe_hpc.experiment.config import ExperimentConfig
from dynapipe_hpc.experiment.profile.grid import ProfileGrid
from dynapipe_hpc.experiment.rank.devices import dtype_of
from dynapipe_hpc.planner.cost.cost_model import FloatArray
from dynapipe_hpc.planner.cost.stage_parts import STAGE
from dynapipe_hpc.planner.cost.table.profile_table import HALVES, QUANTITIES, LayerKey, LayerProfile

MEASURED = (*QUANTITIES, *HALVES)
"""Columns of the costs of stacks; `HALVES` only where split passes were measured."""
TIMES = [MEASURED.index(name) for name in ("forward_ms", "backward_ms", *HALVES)]
STORED = QUANTITIES.index("stored_bytes")
TRANSIENT = [
    QUANTITIES.index(name) for name in ("forward_transient_bytes", "backward_transient_bytes")
]
SMALL_SHARE = 4
PAIRS, NEAR_PAIRS = "pairs", "near pairs"
"""Names of measurements of slices: times per pair of tokens, of all pairs or those in windows."""


def mean_layer(kinds: Sequence[tuple[FloatArray, float]]) -> FloatArray:
    """Costs of stacks whose layers are a mean of several kinds, which alternate in a model.

    `kinds`: Costs of each kind, shape (n_points, n_stacks, 5 or 7), and its share of the layers.
    Transient bytes are the maximum over kinds, as a stage has layers of every kind.
    """
    n = min(len(costs) for costs, _ in kinds)
    mean: FloatArray = np.sum([share * costs[:n] for costs, share in kinds], axis=0)
    mean[..., TRANSIENT] = np.max([costs[:n, :, TRANSIENT] for costs, _ in kinds], axis=0)
    return mean


def separate_layers(stacks: FloatArray) -> dict[str, FloatArray]:
    """Separates a layer of a decoder-only model from the fixed costs of a stage.

    A stack of n layers costs stage + n x layer, the embedding alone stage + embedding, the
    head alone stage + head. The time of the stage does not depend on the micro-batch, so it is
    taken from the smallest ones, where noise does not hide it; the layer is then fitted to both
    stacks by least squares. Bytes are exact, so they are subtracted. Transient bytes do not add
    up: a stage needs as much as the largest of its parts.

    `stacks`: Columns `MEASURED` of `STACKS`, shape (n_points, 4, 5 or 7), smallest micro-batches
    first. Returns arrays by kind, shape (n_points, 5 or 7), nowhere negative.
    """
    one, two, embedding, head = np.moveaxis(stacks, 1, 0)
    stage = 2 * one - two
    stage[:, _times_of(stacks)] = _stage_ms(one, two)
    stage = np.maximum(stage, 0)
    layer = ((one - stage) + 2 * (two - stage)) / 5
    layer[:, TRANSIENT] = np.maximum(one, two)[:, TRANSIENT]
    parts = {STAGE: stage, EMBEDDING: embedding - stage, HEAD: head - stage, LAYER: layer}
    return _with_transient(parts, {STAGE: np.zeros_like(one), EMBEDDING: embedding, HEAD: head})


def separate_pairs(stacks: FloatArray) -> FloatArray:
    """Times of a layer per pair of tokens in a slice, shape (2,): forward and backward.

    `stacks`: One and two layers, shape (1, 2, 5), without costs that do not depend on pairs.
    """
    one, two = stacks[0, :, :2]
    layer: FloatArray = (one + 2 * two) / 5
    return layer


def separate_sides(
    encoder: FloatArray, decoder: FloatArray, boundary_bytes: FloatArray
) -> dict[str, FloatArray]:
    """Costs of the parts of an encoder-decoder model, with a fixed cost per side.

    The method is as in `separate_layers`. The layers of a side share a relative bias, which
    grows with the square of a row's tokens, so a stack of n layers costs stage + side + n x
    layer. The activations received from the previous stage count with the side.

    `encoder`: Costs of the `ENCODER_STACKS`, shape (n_points, 4, 5 or 7). `decoder`: Costs of the
    `DECODER_STACKS`, shape (n_pairs, 2, 5 or 7). `boundary_bytes`: Bytes that a stage of the
    encoder receives, shape (n_points,).
    """
    one, two, embedding, head = np.moveaxis(encoder, 1, 0)
    stage = np.zeros_like(one)
    stage[:, _times_of(encoder)] = np.maximum(_stage_ms(one, two), 0)
    parts = {STAGE: stage, EMBEDDING: embedding - stage, HEAD: head - stage}
    parts[EMBEDDING][:, STORED] -= boundary_bytes
    parts[HEAD][:, STORED] -= 2 * boundary_bytes  # both sides, of equal length
    for kind, side, of_side in (
        (ENCODER, ENCODER_SIDE, encoder),
        (DECODER, DECODER_SIDE, decoder),
    ):
        one, two = np.moveaxis(of_side[:, :2], 1, 0)
        parts[kind] = two - one
        parts[kind][:, TRANSIENT] = np.maximum(one, two)[:, TRANSIENT]
        parts[side] = 2 * one - two - stage[0]
    nothing = {kind: np.zeros_like(parts[kind]) for kind in (STAGE, ENCODER_SIDE, DECODER_SIDE)}
    return _with_transient(parts, {**nothing, EMBEDDING: embedding, HEAD: head})


def _times_of(costs: FloatArray) -> list[int]:
    return [column for column in TIMES if column < costs.shape[-1]]


def _stage_ms(one: FloatArray, two: FloatArray) -> FloatArray:
    """Times of a stage without its layers, from stacks of one and two layers, shape (n_times,)."""
    n_small = 1 + len(one) // SMALL_SHARE
    typical: FloatArray = np.median((2 * one - two)[:n_small, _times_of(one)], axis=0)
    return typical


def _with_transient(
    parts: Mapping[str, FloatArray], needed: Mapping[str, FloatArray]
) -> dict[str, FloatArray]:
    """The parts without negative values; those in `needed` get the transient bytes of a stack."""
    for kind, stack in needed.items():
        parts[kind][:, TRANSIENT] = stack[:, TRANSIENT]
    return {kind: np.maximum(costs, 0) for kind, costs in parts.items()}


def layer_profiles(
    stacks: Mapping[str, FloatArray],
    grid: ProfileGrid,
    config: ExperimentConfig,
    mode: ExecutionMode,
) -> dict[LayerKey, LayerProfile]:
    """Derives the costs of layers from the costs of stacks, and puts them on the grid.

    `stacks`: By kind of layer, shape (n_points, n_stacks, 5 or 7), on the grid's first
    micro-batches (a decoder's on its pairs); `PAIRS` and `NEAR_PAIRS` on slices, if measured.
    """
    n_shards, element_bytes = config.cluster.n_shards, dtype_of(config).itemsize
    weights = config.model.weights(n_shards)
    with_halves = kinds_with_halves(config, mode.recompute)
    profiles = {}
    for kind, costs in _separate(stacks, grid, config).items():
        of_pairs = kind in (DECODER, DECODER_SIDE)
        rows, lengths = np.array(grid.rows), np.array(grid.row_tokens)
        axes = (rows, lengths, lengths) if of_pairs else (rows, lengths)
        points = grid.pairs() if of_pairs else grid.microbatches()
        sizes = np.array([(m.n_rows, m.row_tokens, m.target_tokens) for m in points]).T
        # Indices of the points on the axes.
        places = np.stack([np.searchsorted(*each) for each in zip(axes, sizes, strict=False)])
        names = MEASURED if kind in with_halves else QUANTITIES
        grids = {name: np.full([*map(len, axes)], np.nan) for name in names}
        for name, column in zip(names, costs.T, strict=False):
            grids[name][tuple(places[:, : len(costs)])] = column
        key = LayerKey(n_shards, mode.recompute.text, kind, mode.layout.text)
        parameters = weights[kind].n_numbers if kind in weights else 0
        pairs = _pair_times(stacks) if kind == LAYER else {}
        profiles[key] = LayerProfile(parameters * element_bytes, axes, **grids, **pairs)
    return profiles


def _pair_times(stacks: Mapping[str, FloatArray]) -> dict[str, FloatArray]:
    """Times of a layer per pair, by name in its profile; empty if slices were not measured."""
    names = {PAIRS: "pair_ms", NEAR_PAIRS: "near_pair_ms"}
    times = {name: separate_pairs(stacks[kind]) for kind, name in names.items() if kind in stacks}
    return {"pair_ms": np.zeros(2), **times} if times else {}


def _separate(
    stacks: Mapping[str, FloatArray], grid: ProfileGrid, config: ExperimentConfig
) -> dict[str, FloatArray]:
    if LAYER in stacks:
        return separate_layers(stacks[LAYER])
    width, n_parts = config.model.hidden_size, config.cluster.n_stream_shards
    microbatches = grid.microbatches()[: len(stacks[ENCODER])]
    numbers = [math.prod(Boundary.ROWS.shape(m, width, n_parts)) for m in microbatches]
    boundary_bytes = dtype_of(config).itemsize * np.array(numbers)
    return separate_sides(stacks[ENCODER], stacks[DECODER], boundary_bytes)
