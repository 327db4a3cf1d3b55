"""Which part of a backward pass is left to a pass for gradients of weights."""

import numpy as np

from dynapipe_hpc.architecture.part import BACKWARD_WORK, NO_WORK
from dynapipe_hpc.data.microbatch import Recompute
from dynapipe_hpc.plan.model_shape import ModelShape
from dynapipe_hpc.planner.cost.cost_model import FloatArray, Shapes
from dynapipe_hpc.planner.cost.measured_axes import Axes
from dynapipe_hpc.planner.cost.table.profile_table import LayerProfile
from dynapipe_hpc.planner.cost.tokens import Tokens


def weight_ms(
    kind: str,
    layer: LayerProfile,
    plain_ms: FloatArray,
    shape: ModelShape,
    axes: Axes,
    recompute: Recompute,
) -> FloatArray:
    """Time of the weight gradients that a layer's backward pass may defer: measured, or a share.

    Gradients of the inputs of a linear map cost as much as its forward pass, and so do those of
    its weights; attention has no weights, and its gradients cost twice its forward pass. So of
    a backward pass in the mode that recomputes nothing, what waits takes the share

        FLOPs of maps that defer / (2 * (linear FLOPs + attention FLOPs) + FLOPs repeated even so).

    Maps of a block that is recomputed do not defer, nor do embedding and head. Where the pass
    without recomputation was not measured, the forward pass is taken for what was recomputed.

    Args:
        kind: What the layer is.
        layer: Measurements on three axes.
        plain_ms: Time of its backward pass without recomputation, on the same grid; NaN where that
            was not measured.
        shape: The model.
        axes: Axes of the measurements.
        recompute: Mode of the pass.

    Returns:
        On the grid of the layer, never more than its backward_ms; NaN where that is.
    """
    if layer.weight_ms is not None:
        return np.minimum(layer.weight_ms, layer.backward_ms)
    not_forward_ms = np.maximum(layer.backward_ms - layer.forward_ms, 0.0)
    unrepeated_ms = np.where(np.isnan(plain_ms), not_forward_ms, plain_ms)
    return np.minimum(_share(kind, shape, axes, recompute) * unrepeated_ms, layer.backward_ms)


def _share(kind: str, shape: ModelShape, axes: Axes, recompute: Recompute) -> float | FloatArray:
    part = shape.architecture.parts().get(kind)
    if part is None or part.work == NO_WORK:
        return 0.0
    one_row = Shapes(np.array(1), axes[1][:, np.newaxis], axes[2])
    tokens = Tokens.of(part.side, one_row)
    linear, attention = (tokens.times(flops) for flops in part.work)
    repeated = tokens.times(part.recomputed_work(Recompute.NONE))
    deferred = tokens.times(part.deferred_work(recompute))
    share: FloatArray = deferred / (BACKWARD_WORK * (linear + attention) + repeated)
    return share
