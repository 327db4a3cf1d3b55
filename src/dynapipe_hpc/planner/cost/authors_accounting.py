"""Accounting of memory and times by the authors of the paper, to compare plans with theirs.

They leave out weights and logits of the head, all costs of the embedding except its weights, and
the transient memory of backward passes. The peak of a stage is what all its layers but one store
plus the peak of a profiled stack, although that stack had three layers. Noise is not removed.

Source:
    Jiang et al., "DynaPipe", EuroSys 2024, doi:10.1145/3627703.3629585, and its artifact.
"""

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import numpy as np

from dynapipe_hpc.architecture.model_shape import ModelShape
from dynapipe_hpc.architecture.part import EMBEDDING, HEAD, LAYER
from dynapipe_hpc.architecture.placement import Placement
from dynapipe_hpc.architecture.t5 import DECODER, DECODER_SIDE, ENCODER, ENCODER_SIDE
from dynapipe_hpc.data.errors import InputError
from dynapipe_hpc.plan.cluster import Cluster
from dynapipe_hpc.planner.cost.accounting import Accounting
from dynapipe_hpc.planner.cost.cost_model import FloatArray
from dynapipe_hpc.planner.cost.measured_axes import Axes
from dynapipe_hpc.planner.cost.model_state import HeldWeights
from dynapipe_hpc.planner.cost.monotone import Repaired
from dynapipe_hpc.planner.cost.stage_parts import STAGE, parts_of_stages
from dynapipe_hpc.planner.cost.table.profile_table import LayerProfile

# Weights and gradients, in units of weights; the rest is state of the optimizer.
KEPT_BY_EVERY_REPLICA = 2


def _as_authors_count(layers: Mapping[str, LayerProfile], path: Path) -> dict[str, LayerProfile]:
    """Layers with the authors' memory and times, by kind.

    Raises:
        InputError: The table at `path` does not say what stacks of layers peaked at.
    """
    kinds = [kind for kind in (LAYER, ENCODER, DECODER) if kind in layers]
    sides = {kind: layers[kind] for kind in (ENCODER_SIDE, DECODER_SIDE) if kind in layers}
    return {
        **sides,
        **{kind: _with_stack_peak(layers[kind], path) for kind in kinds},
        HEAD: replace(_without_memory(layers[HEAD]), parameter_bytes=0.0),
        EMBEDDING: _without_time(_without_memory(layers[EMBEDDING])),
        STAGE: _without_time(_without_memory(layers[STAGE])),
    }


def _with_stack_peak(layer: LayerProfile, path: Path) -> LayerProfile:
    if layer.stack_peak_bytes is None:
        raise InputError(
            f"{path}: has no stack_peak_bytes of its layers, which planner.cost.accounting = "
            "\"authors\" needs; use a table of 'dynapipe-hpc profile CONFIG --from-csv A.csv', or "
            'accounting = "measured"'
        )
    on_top = layer.stack_peak_bytes - layer.stored_bytes
    return replace(layer, forward_transient_bytes=on_top, backward_transient_bytes=_nothing(on_top))


def _state_factor(state_factor: float, _: int, cluster: Cluster) -> float:
    """Bytes of model and state per byte of weights, with ZeRO-1 over replicas."""
    return KEPT_BY_EVERY_REPLICA + (state_factor - KEPT_BY_EVERY_REPLICA) / cluster.n_replicas


def _untied_weights(
    parameter_bytes: Mapping[str, float], shape: ModelShape, placement: Placement, _: int
) -> HeldWeights:
    """Weights on every stage, as if every part had its own."""
    counts = parts_of_stages(shape, placement)
    own: FloatArray = np.sum([counts[kind] * n for kind, n in parameter_bytes.items()], axis=0)
    return HeldWeights(own, np.zeros_like(own), np.zeros_like(own))


def _unrepaired(measured: FloatArray) -> Repaired:
    return Repaired(np.where(np.isnan(measured), np.inf, measured), 0)


def _unrefined(axes: Axes, points: FloatArray) -> tuple[Axes, FloatArray]:
    """The axes and points as measured, for linear interpolation between them."""
    return axes, points


def _without_memory(layer: LayerProfile) -> LayerProfile:
    nothing = _nothing(layer.forward_ms)
    return replace(
        layer,
        stored_bytes=nothing,
        forward_transient_bytes=nothing,
        backward_transient_bytes=nothing,
    )


def _without_time(layer: LayerProfile) -> LayerProfile:
    nothing = _nothing(layer.forward_ms)
    return replace(layer, forward_ms=nothing, backward_ms=nothing, input_ms=None, weight_ms=None)


def _nothing(like: FloatArray) -> FloatArray:
    """Zero where measured."""
    return np.where(np.isnan(like), np.nan, 0.0)


AUTHORS = Accounting(
    layers=_as_authors_count,
    state_factor=_state_factor,
    weights=_untied_weights,
    repair=_unrepaired,
    finer=_unrefined,
    has_update=False,
    balances_stages=False,
)
