"""Costs measured layer by layer."""

from collections.abc import Collection, Iterable, Mapping, Sequence
from functools import partial
from itertools import product, starmap
from pathlib import Path
from typing import NamedTuple

import numpy as np

from dynapipe_hpc.architecture.model_shape import ModelShape
from dynapipe_hpc.architecture.placement import Placement
from dynapipe_hpc.data.errors import InputError
from dynapipe_hpc.data.microbatch import ExecutionMode, Layout, Recompute
from dynapipe_hpc.plan.cluster import Cluster
from dynapipe_hpc.planner.cost.config import ProfiledConfig
from dynapipe_hpc.planner.cost.cost_model import (
    CostModel,
    FloatArray,
    KnownRows,
    Shapes,
    StageCosts,
)
from dynapipe_hpc.planner.cost.interpolate import Interpolator
from dynapipe_hpc.planner.cost.measured_axes import common_axes
from dynapipe_hpc.planner.cost.model_state import (
    factor_of_copies,
    held_weights,
    slice_memory,
    state_factor_of_rank,
)
from dynapipe_hpc.planner.cost.slice_costs import PairTimes, costs_of_slices
from dynapipe_hpc.planner.cost.stage_grids import StageMeasurements
from dynapipe_hpc.planner.cost.stage_parts import StageKinds, boundary_sizes, parts_of_stages
from dynapipe_hpc.planner.cost.table.profile_table import (
    LayerKey,
    LayerProfile,
    ProfileTable,
    check_model,
)
from dynapipe_hpc.planner.cost.weight_gradients import PlainBackward


def profiled_cost(
    table: ProfileTable,
    shape: ModelShape,
    placement: Placement,
    cluster: Cluster,
    *,
    config: ProfiledConfig,
    is_smoothed: bool = True,
) -> CostModel:
    """A `CostModel` that interpolates in a table of measurements.

    A stage takes the sum of its layers' times and stored bytes, and the largest of their transient
    bytes. Nothing is extrapolated: beyond the measured sizes, or with more tokens than the largest
    measured, a micro-batch is infeasible; below the smallest it costs as much as the smallest.
    Packed rows are looked up among packed rows if these were measured in every mode, else among
    padded rows. In an encoder-decoder model, parts that only inputs pass through are looked up
    separately, as the two sides of packed rows count as different numbers of rows.

    `is_smoothed`: Whether noise is repaired, and times between lengths lie on curves; if not, costs
    are linear between the measurements, to compare with other simulators.
    """
    check_model(table.model, shape, config.path)
    counts = parts_of_stages(shape, placement)
    selection = _Selection(table, config, cluster.n_shards)
    layouts = selection.layouts(config.recompute_modes, counts)
    layers_of_mode = {
        mode: selection.layers(mode, counts)
        for mode in starmap(ExecutionMode, product(layouts, config.recompute_modes))
    }
    layers = next(iter(layers_of_mode.values()))  # all have the same weights
    parameter_bytes = {kind: layers[kind].parameter_bytes for kind in counts}
    held = held_weights(parameter_bytes, shape, placement, cluster.n_shards)
    factor = state_factor_of_rank(table.state_factor, table.element_bytes, cluster)
    sizes = boundary_sizes(shape, placement, cluster.n_stream_shards)
    stages = StageKinds.from_counts(counts, sizes * table.element_bytes)
    plain = {
        layout: PlainBackward.from_layers(selection.measured_plain(layout, counts), config.path)
        for layout in layouts
    }
    measured = _Measured(
        {
            mode: StageMeasurements(
                mode.recompute,
                each,
                common_axes(each, config.path),
                plain[mode.layout],
                shape,
                stages,
                is_smoothed=is_smoothed,
            )
            for mode, each in layers_of_mode.items()
        },
        config.path,
        shape.has_target_rows,
        shape.window,
    )
    # Copies of tied weights are reduced, too.
    reduces = cluster.n_replicas > 1 or held.copied.any()
    told_apart = [*layouts, Layout.PACKED] if shape.has_target_rows else layouts
    return CostModel(
        price=measured.price,
        bound=partial(measured.price, is_monotone=True),
        describe=measured.describe,
        recompute_modes=config.recompute_modes,
        static_bytes=held.own * factor
        + held.copied * factor_of_copies(table.element_bytes)
        + held.frozen,
        slice_memory=slice_memory(
            shape, placement, cluster.n_shards, element_bytes=table.element_bytes
        ),
        reduce_ms=held.own * (table.update.reduce_ms_per_byte if reduces else 0),
        step_ms=float(held.own.max() * table.update.optimizer_ms_per_byte),
        is_encoder_decoder=shape.has_target_rows,
        layouts=tuple(dict.fromkeys(told_apart)),
        known_rows=measured.known_rows(),
        kind_of_stage=stages.kind_of_stage,
        window=shape.window,
    )


class _Measured(NamedTuple):
    """Measurements by layout and mode of recomputation, and the path of their table."""

    of_modes: Mapping[ExecutionMode, StageMeasurements]
    path: Path
    is_encoder_decoder: bool
    window: float

    def describe(self) -> str:
        """Layouts that were measured, and the share of measurements that were repaired."""
        layouts = " and ".join(dict.fromkeys(mode.layout.text for mode in self.of_modes))
        repaired = np.mean([each.grids.repaired for each in self.of_modes.values()])
        noise = f"noise repaired in {100 * repaired:.1f} % of them"
        return f"measured in {layouts} rows, from {self.path}; {noise}"

    def known_rows(self) -> KnownRows:
        """Rows that were measured, in every layout and mode up to `most`."""
        every_axes = [each.axes for each in self.of_modes.values()]
        every_rows, every_length, every_target_length = zip(*every_axes, strict=True)
        most = min(rows[-1] for rows in every_rows)
        n_rows = sorted({n for rows in every_rows for n in rows.tolist()})
        shortest = max(int(lengths[0]) for lengths in (*every_length, *every_target_length))
        longest = min(int(lengths[-1]) for lengths in every_length)
        return KnownRows(n_rows, most, shortest, longest)

    def price(
        self,
        shapes: Shapes,
        layout: Layout,
        recompute: Recompute,
        out: FloatArray | None,
        *,
        is_monotone: bool = False,
    ) -> StageCosts:
        # Packed pairs are told from padded ones even among measurements of padded rows.
        apart = self.is_encoder_decoder and layout is Layout.PACKED
        mode = ExecutionMode(layout, recompute)
        measured = self.of_modes.get(mode) or self.of_modes[mode._replace(layout=Layout.PADDED)]
        costs = measured.two_sides if apart else measured.interpolator
        costs = costs.monotone if is_monotone else costs
        if isinstance(costs, Interpolator) and np.min(shapes.n_rows, initial=1.0) < 1:
            pairs = PairTimes(measured.pair_ms, measured.near_pair_ms, self.window)
            return costs_of_slices(costs, shapes, pairs, out)
        return costs(shapes, out)


class _Selection(NamedTuple):
    """Measurements of a table that a model uses."""

    table: ProfileTable
    config: ProfiledConfig
    n_shards: int

    def layouts(self, recomputes: Sequence[Recompute], kinds: Collection[str]) -> list[Layout]:
        """Padded, and packed if these layers were measured packed in these modes."""
        packed = [ExecutionMode(Layout.PACKED, each) for each in recomputes]
        has_packed = all(
            self.key(mode, kind) in self.table.layers for mode, kind in product(packed, kinds)
        )
        return [Layout.PADDED, Layout.PACKED] if has_packed else [Layout.PADDED]

    def layers(self, mode: ExecutionMode, kinds: Iterable[str]) -> dict[str, LayerProfile]:
        return {kind: self._layer(self.key(mode, kind)) for kind in kinds}

    def measured_plain(self, layout: Layout, kinds: Iterable[str]) -> dict[str, LayerProfile]:
        """Measurements without recomputation, if all of these layers have them."""
        keys = {kind: self.key(ExecutionMode(layout, Recompute.NONE), kind) for kind in kinds}
        if not all(key in self.table.layers for key in keys.values()):
            return {}
        return {kind: self.table.layers[key] for kind, key in keys.items()}

    def key(self, mode: ExecutionMode, kind: str) -> LayerKey:
        """Place of a layer in the table."""
        return LayerKey(self.n_shards, mode.recompute.text, kind, mode.layout.text)

    def _layer(self, key: LayerKey) -> LayerProfile:
        if key not in self.table.layers:
            known = "; ".join(str(known) for known in self.table.layers)
            raise InputError(
                f"{self.config.path}: holds no measurements of {key}, only of: {known}; change "
                "planner.cost.recompute or cluster.n_shards (which is tensor_parallel there), or "
                "measure them with 'dynapipe-hpc profile'"
            )
        return self.table.layers[key]
