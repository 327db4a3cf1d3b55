"""Which part of a backward pass computes gradients of weights."""

import numpy as np

from dynapipe_hpc.architecture.part import BACKWARD_WORK, EMBEDDING, NO_WORK
from dynapipe_hpc.data.microbatch import Recompute
from dynapipe_hpc.plan.model_shape import ModelShape
from dynapipe_hpc.planner.cost.cost_model import FloatArray, Shapes
from dynapipe_hpc.planner.cost.measured_axes import Axes
from dynapipe_hpc.planner.cost.table.profile_table import LayerProfile
from dynapipe_hpc.planner.cost.tokens import Tokens


def weight_ms(
    kind: str, layer: LayerProfile, plain_ms: FloatArray, shape: ModelShape, axes: Axes
) -> FloatArray:
    """Time of gradients of weights in a layer's backward pass: as measured, or a share of it.

    Gradients of the inputs of a linear map cost as much as its forward pass, and so do those of
    its weights; attention has no weights, and its gradients cost twice its forward pass. So of
    a backward pass in the mode that recomputes nothing, weights take the share

        linear FLOPs / (2 * (linear FLOPs + attention FLOPs) + FLOPs that it repeats even so).

    What a pass recomputes on top belongs to the gradients of inputs. Where the pass without
    recomputation was not measured, the forward pass is taken for what was recomputed. Of an
    embedding there is nothing but gradients of weights; what a stage takes besides, and what
    the layers of a side share, counts as having none.

    Args:
        kind: What the layer is.
        layer: Measurements on three axes.
        plain_ms: Time of its backward pass without recomputation, on the same grid; NaN where that
            was not measured.
        shape: The model.
        axes: Axes of the measurements.

    Returns:
        On the grid of the layer, never more than its backward_ms; NaN where that is.
    """
    if layer.weight_ms is not None:
        return np.minimum(layer.weight_ms, layer.backward_ms)
    not_forward_ms = np.maximum(layer.backward_ms - layer.forward_ms, 0.0)
    unrepeated_ms = np.where(np.isnan(plain_ms), not_forward_ms, plain_ms)
    return np.minimum(_share(kind, shape, axes) * unrepeated_ms, layer.backward_ms)


def _share(kind: str, shape: ModelShape, axes: Axes) -> float | FloatArray:
    part = shape.architecture.parts().get(kind)
    if part is None or part.work == NO_WORK:
        return 0.0
    if kind == EMBEDDING:
        return 1.0
    one_row = Shapes(np.array(1), axes[1][:, np.newaxis], axes[2])
    tokens = Tokens.of(part.side, one_row)
    linear, attention = (tokens.times(flops) for flops in part.work)
    repeated = tokens.times(part.recomputed_work(Recompute.NONE))
    share: FloatArray = linear / (BACKWARD_WORK * (linear + attention) + repeated)
    return share
