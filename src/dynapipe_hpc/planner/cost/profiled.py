"""Costs measured layer by layer."""

from collections.abc import Iterable, Mapping
from pathlib import Path

import numpy as np

from dynapipe_hpc.data.errors import InputError
from dynapipe_hpc.data.microbatch import Recompute
from dynapipe_hpc.plan.cluster import Cluster
from dynapipe_hpc.plan.model_shape import ModelShape
from dynapipe_hpc.planner.cost.authors_accounting import as_authors_count, authors_state_factor
from dynapipe_hpc.planner.cost.config import ProfiledConfig
from dynapipe_hpc.planner.cost.cost_model import FloatArray, IntArray, Shapes, StageCosts
from dynapipe_hpc.planner.cost.interpolate import Interpolator
from dynapipe_hpc.planner.cost.model_state import state_factor_of_rank
from dynapipe_hpc.planner.cost.monotone import as_measured, make_monotone
from dynapipe_hpc.planner.cost.profile_table import (
    QUANTITIES,
    LayerKey,
    LayerProfile,
    ProfileTable,
    UpdateProfile,
    check_model,
)
from dynapipe_hpc.planner.cost.stage_grids import stage_grids
from dynapipe_hpc.planner.cost.stage_parts import LAYER, parts_of_stages


class ProfiledCost:
    """A `CostModel` that interpolates in a table of measurements.

    A stage takes the sum of its layers' times and stored bytes, and the largest of their
    transient bytes. Nothing is extrapolated: beyond what was measured a micro-batch is
    infeasible, below the smallest one it costs as much as that.

    Args:
        table: The measurements.
        shape: The model, which must be the one measured (its number of layers aside).
        cluster: The stages it is spread over.
        config: Which of the table's layers to use.

    Raises:
        InputError: The table is of another model, or lacks what is asked of it.
    """

    def __init__(
        self, table: ProfileTable, shape: ModelShape, cluster: Cluster, config: ProfiledConfig
    ) -> None:
        check_model(table.model, shape, config.path)
        self._modes = config.recompute_modes
        counts = parts_of_stages(shape, cluster.n_stages)
        layers_of_mode = {mode: _layers(table, config, mode, counts) for mode in self._modes}
        layers = layers_of_mode[self._modes[0]]  # every mode has the same weights
        weight_bytes = [count * layers[kind].parameter_bytes for kind, count in counts.items()]
        self._weight_bytes: FloatArray = np.sum(weight_bytes, axis=0)
        state_factor = config.state_factor or table.state_factor
        self._state_factor = state_factor_of_rank(state_factor, table.element_bytes, cluster)
        self._update, repair = table.update, make_monotone
        if config.accounting == "authors":
            self._state_factor = authors_state_factor(state_factor, cluster.n_replicas)
            self._update, repair = UpdateProfile(), as_measured
        boundaries = (np.arange(cluster.n_stages) < cluster.n_stages - 1).astype(np.float64)
        self._boundary_bytes_per_token = boundaries * shape.hidden_size * table.element_bytes
        self._path = config.path
        self._n_replicas = cluster.n_replicas
        grids = {mode: stage_grids(each, counts, repair) for mode, each in layers_of_mode.items()}
        self._repaired = float(np.mean([repaired for _, repaired in grids.values()]))
        self._interpolate = {
            mode: Interpolator(*_common_axes(layers_of_mode[mode], config.path), grid)
            for mode, (grid, _) in grids.items()
        }

    @property
    def description(self) -> str:
        """The table, and what noise there was in it, for people."""
        return f"measured, from {self._path}; noise repaired in {100 * self.repaired:.1f} % of them"

    @property
    def repaired(self) -> float:
        """Share of the measurements that noise had made decrease and that were repaired."""
        return self._repaired

    @property
    def is_encoder_decoder(self) -> bool:
        """Only decoder-only models are known."""
        return False

    @property
    def recompute_modes(self) -> tuple[Recompute, ...]:
        """Those that the configuration names."""
        return self._modes

    @property
    def static_bytes(self) -> FloatArray:
        """Shape (n_stages,): weights, gradients and optimizer state."""
        return self._weight_bytes * self._state_factor

    @property
    def update_ms(self) -> float:
        """Reduction and step on the largest stage."""
        reduce_ms = self._update.reduce_ms_per_byte if self._n_replicas > 1 else 0.0
        per_byte = reduce_ms + self._update.optimizer_ms_per_byte
        return float(self._weight_bytes.max() * per_byte)

    def stage_costs(self, shapes: Shapes, recompute: Recompute = Recompute.NONE) -> StageCosts:
        """Costs of micro-batches, see `CostModel`."""
        n_rows, row_tokens, _ = shapes
        costs = dict(zip(QUANTITIES, self._interpolate[recompute](n_rows, row_tokens), strict=True))
        boundary_bytes = np.outer(n_rows * row_tokens, self._boundary_bytes_per_token)
        return StageCosts.of(
            **costs, weight_ms=costs["backward_ms"] / 2, boundary_bytes=boundary_bytes
        )


def _layers(
    table: ProfileTable, config: ProfiledConfig, recompute: Recompute, kinds: Iterable[str]
) -> dict[str, LayerProfile]:
    keys = {kind: LayerKey(config.tensor_parallel, recompute.text, kind) for kind in kinds}
    layers = {kind: _layer(table, config, key) for kind, key in keys.items()}
    return as_authors_count(layers, config.path) if config.accounting == "authors" else layers


def _layer(table: ProfileTable, config: ProfiledConfig, key: LayerKey) -> LayerProfile:
    if key not in table.layers:
        known = "; ".join(str(known) for known in table.layers)
        raise InputError(
            f"{config.path}: holds no measurements of {key}, only of: {known}; "
            "change planner.cost or measure them with 'dynapipe-hpc profile'"
        )
    return table.layers[key]


def _common_axes(layers: Mapping[str, LayerProfile], path: Path) -> tuple[IntArray, IntArray]:
    axes = rows, row_tokens = layers[LAYER].axes
    for kind, layer in layers.items():
        if not all(map(np.array_equal, layer.axes, axes)):
            raise InputError(
                f"{path}: '{kind}' was measured with other rows or lengths than '{LAYER}'; "
                "measure them together with 'dynapipe-hpc profile'"
            )
    return rows, row_tokens
