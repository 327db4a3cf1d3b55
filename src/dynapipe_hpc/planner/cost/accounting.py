"""Rules by which measurements of layers become costs of stages."""

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import NamedTuple

from dynapipe_hpc.architecture.model_shape import ModelShape
from dynapipe_hpc.architecture.placement import Placement
from dynapipe_hpc.plan.cluster import Cluster
from dynapipe_hpc.planner.cost.cost_model import FloatArray
from dynapipe_hpc.planner.cost.finer_lengths import with_finer_lengths
from dynapipe_hpc.planner.cost.measured_axes import Axes
from dynapipe_hpc.planner.cost.model_state import HeldWeights, held_weights, state_factor_of_rank
from dynapipe_hpc.planner.cost.monotone import Repaired, make_monotone
from dynapipe_hpc.planner.cost.table.profile_table import LayerProfile

Layers = Mapping[str, LayerProfile]


def _all_layers(layers: Layers, _: Path) -> Layers:
    return layers


class Accounting(NamedTuple):
    """Rules by which measurements become costs; the defaults count all that a rank holds and does.

    A baseline whose plans are compared with ours may count in another way.

    Attributes:
        layers: Measured layers by kind, as they are counted; with the path of their table.
        state_factor: Bytes of model and state per byte of weights, see `state_factor_of_rank`.
        weights: Weights on every stage, see `held_weights`.
        repair: Function that removes the noise from the measurements of one kind and quantity.
        finer: Function that adds points to a grid where costs are curved.
        has_update: Whether reducing gradients and the optimizer's step take time.
        balances_stages: Whether layers may be placed in other than equal shares.
    """

    layers: Callable[[Layers, Path], Layers] = _all_layers
    state_factor: Callable[[float, int, Cluster], float] = state_factor_of_rank
    weights: Callable[[Mapping[str, float], ModelShape, Placement, int], HeldWeights] = held_weights
    repair: Callable[[FloatArray], Repaired] = make_monotone
    finer: Callable[[Axes, FloatArray], tuple[Axes, FloatArray]] = with_finer_lengths
    has_update: bool = True
    balances_stages: bool = True


MEASURED = Accounting()
