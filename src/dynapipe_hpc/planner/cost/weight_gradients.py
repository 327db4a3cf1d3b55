"""Costs of split backward passes: gradients of inputs first, gradients of weights later."""

from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple, Self

import numpy as np

from dynapipe_hpc.architecture.model_shape import ModelShape
from dynapipe_hpc.architecture.part import NOTHING
from dynapipe_hpc.data.microbatch import Recompute
from dynapipe_hpc.planner.cost.cost_model import FloatArray, Shapes
from dynapipe_hpc.planner.cost.interpolate import make_monotone
from dynapipe_hpc.planner.cost.measured_axes import (
    NO_POINTS,
    Axes,
    at_points,
    common_axes,
    on_three_axes,
)
from dynapipe_hpc.planner.cost.stage_parts import Tokens
from dynapipe_hpc.planner.cost.table.profile_table import LayerProfile


class PlainBackward(NamedTuple):
    """Backward passes without recomputation, of all kinds of layers or of none."""

    axes: Axes
    backward_ms: Mapping[str, FloatArray]

    @classmethod
    def from_layers(cls, layers: Mapping[str, LayerProfile], path: Path) -> Self:
        """The passes of measured layers by kind, possibly none.

        `layers`: Measurements without recomputation.
        """
        if not layers:
            return cls((NO_POINTS, NO_POINTS, NO_POINTS), {})
        times = {kind: layer.backward_ms for kind, layer in on_three_axes(layers).items()}
        return cls(common_axes(layers, path), times)

    def at(self, kind: str, axes: Axes) -> FloatArray:
        """Times of a kind of layer at the points of a grid; NaN where not measured."""
        if kind not in self.backward_ms:
            return np.full((1, 1, 1), np.nan)
        return at_points(self.backward_ms[kind], self.axes, axes)


class SplitTimes(NamedTuple):
    """Times of a layer's split backward pass, on the grid of the layer; see `StageCosts`."""

    weight_ms: FloatArray
    splitting_ms: FloatArray


def split_times(
    kind: str,
    layer: LayerProfile,
    plain_ms: FloatArray,
    *,
    shape: ModelShape,
    axes: Axes,
    recompute: Recompute,
) -> SplitTimes:
    """Times of the two halves of a layer's backward pass: measured, or a share of it.

    Measured halves are repaired like the unsplit pass, see `make_monotone`. Together they take at
    least as long as that pass: if noise made them shorter, their sum is set to its time, so that
    splitting never seems to save work.

    Where halves were not measured, splitting is free, and weights take a share. Gradients of the
    inputs of a linear map cost as much as its forward pass, and so do gradients of its weights;
    attention has no weights, and its gradients cost twice its forward pass. So in a backward pass
    without recomputation, deferred gradients take the share

        FLOPs of maps that defer / (2 * (linear FLOPs + attention FLOPs) + FLOPs repeated anyway),

    not counting frozen weights, which have no gradients.

    Maps of a block that is recomputed do not defer, nor do embedding and head. Where the pass
    without recomputation was not measured, the forward pass stands for what was recomputed.

    `plain_ms`: Time of the layer's backward pass without recomputation, on the same grid; NaN where
    not measured.

    Gradients of weights take at most the layer's `backward_ms`, and are NaN where it is.
    """
    weight_ms = layer.weight_ms
    if weight_ms is None:
        weight_ms = _estimated_ms(
            kind, layer, plain_ms, shape=shape, axes=axes, recompute=recompute
        )
    elif layer.input_ms is not None:
        return _measured(layer.backward_ms, layer.input_ms, weight_ms)
    return SplitTimes(np.minimum(weight_ms, layer.backward_ms), np.zeros_like(layer.backward_ms))


def _measured(*measured: FloatArray) -> SplitTimes:
    whole_ms, input_ms, weight_ms = (
        np.where(np.isnan(measured[0]), np.nan, make_monotone(times).grid) for times in measured
    )
    with np.errstate(invalid="ignore"):  # where all are infinite
        more_ms = np.maximum(input_ms + weight_ms - whole_ms, 0.0)
    return SplitTimes(np.minimum(weight_ms, whole_ms), more_ms)


def _estimated_ms(
    kind: str,
    layer: LayerProfile,
    plain_ms: FloatArray,
    *,
    shape: ModelShape,
    axes: Axes,
    recompute: Recompute,
) -> FloatArray:
    not_forward_ms = np.maximum(layer.backward_ms - layer.forward_ms, 0.0)
    unrepeated_ms = np.where(np.isnan(plain_ms), not_forward_ms, plain_ms)
    return _share(kind, shape, axes, recompute) * unrepeated_ms


def _share(kind: str, shape: ModelShape, axes: Axes, recompute: Recompute) -> float | FloatArray:
    part = shape.parts().get(kind)
    if part is None or part.deferred_work(recompute) == NOTHING:
        return 0.0
    one_row = Shapes.padded(np.array(1), axes[1][:, np.newaxis], axes[2])
    tokens = Tokens.from_shapes(part.side, one_row)
    backward = tokens.times(part.work.backward)
    repeated = tokens.times(part.recomputed_work(Recompute.NONE))
    deferred = tokens.times(part.deferred_work(recompute))
    share: FloatArray = deferred / (backward + repeated)
    return share
