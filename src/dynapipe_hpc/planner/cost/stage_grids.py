"""Costs of stages, from measurements of single layers."""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from functools import cached_property
from itertools import combinations
from typing import NamedTuple

import numpy as np

from dynapipe_hpc.architecture.model_shape import ModelShape
from dynapipe_hpc.architecture.part import LAYER
from dynapipe_hpc.data.microbatch import Recompute
from dynapipe_hpc.planner.cost.cost_model import SHARED, Cost, FloatArray, IntArray, StageCosts
from dynapipe_hpc.planner.cost.interpolate import (
    Interpolator,
    PairedCosts,
    Repaired,
    make_monotone,
    unrepaired,
)
from dynapipe_hpc.planner.cost.measured_axes import (
    NO_TARGET,
    ROW_TOKENS,
    TARGET_TOKENS,
    Axes,
    depends_on_targets,
    on_three_axes,
)
from dynapipe_hpc.planner.cost.slice_costs import pair_ms_of_rows
from dynapipe_hpc.planner.cost.stage_parts import StageKinds
from dynapipe_hpc.planner.cost.table.profile_table import QUANTITIES, LayerProfile
from dynapipe_hpc.planner.cost.weight_gradients import PlainBackward, SplitTimes, split_times


@dataclass(frozen=True, eq=False)
class StageMeasurements:
    """Measurements of the layers of all stages, in one layout and mode.

    Costs are computed when first needed: many plans need only few of them.
    """

    mode: Recompute
    measured: Mapping[str, LayerProfile]
    axes: Axes  # numbers of rows, tokens per row and target tokens, each ascending
    plain: PlainBackward  # backward passes without recomputation
    shape: ModelShape
    stages: StageKinds
    is_smoothed: bool  # whether noise is repaired, and points are added where costs are curved

    @cached_property
    def layers(self) -> Mapping[str, LayerProfile]:
        """Measured layers by kind, on three axes."""
        return on_three_axes(self.measured)

    @cached_property
    def splits(self) -> Mapping[str, SplitTimes]:
        """Times of split backward passes by kind, on the same axes."""
        return {
            kind: split_times(
                kind,
                layer,
                self.plain.at(kind, self.axes),
                shape=self.shape,
                axes=self.axes,
                recompute=self.mode,
            )
            for kind, layer in self.layers.items()
        }

    @cached_property
    def grids(self) -> "StageGrids":
        """Costs of stages at the measured sizes."""
        return self._grids(self.layers)

    @cached_property
    def interpolator(self) -> Interpolator:
        """Costs of stages between the measurements."""
        return self._interpolated(self.grids, self.axes, self.stages.boundaries)

    @cached_property
    def pair_ms(self) -> FloatArray:
        """Times per pair of a token of a slice and a token before the slice, shape (n_kinds, 2)."""
        layer = self.measured.get(LAYER)
        if layer is None or layer.pair_ms is None:
            return pair_ms_of_rows(self.interpolator)
        on_stages: FloatArray = np.outer(self.stages.counts[LAYER], layer.pair_ms)
        return on_stages

    @cached_property
    def near_pair_ms(self) -> FloatArray:
        """Times like `pair_ms` of layers with a window, for the pairs within it."""
        layer = self.measured.get(LAYER)
        if layer is None or layer.near_pair_ms is None:
            return np.zeros_like(self.pair_ms)
        on_stages: FloatArray = np.outer(self.stages.counts[LAYER], layer.near_pair_ms)
        return on_stages

    @cached_property
    def two_sides(self) -> PairedCosts:
        """Costs like `interpolator`, but with the two sides of an encoder-decoder model apart."""
        of_targets = {kind: depends_on_targets(kind, self.layers) for kind in self.layers}
        inputs = self._grids(kind for kind, depends in of_targets.items() if not depends)
        targets = self._grids(kind for kind, depends in of_targets.items() if depends)
        rows, row_tokens, _ = self.axes
        no_boundaries = np.zeros_like(self.stages.boundaries)
        return PairedCosts(
            self._interpolated(inputs, (rows, row_tokens, NO_TARGET), no_boundaries),
            self._interpolated(targets, self.axes, self.stages.boundaries),
        )

    def _interpolated(
        self, grids: "StageGrids", axes: Axes, boundaries: FloatArray
    ) -> Interpolator:
        limits = most_tokens(axes, grids.points)
        points = grids.points
        if self.is_smoothed:
            axes, points = with_finer_lengths(axes, points)
        return Interpolator(axes, points, limits, self.stages.kind_of_stage, boundaries)

    def _grids(self, kinds: Iterable[str]) -> "StageGrids":
        layers = {kind: self.layers[kind] for kind in kinds}
        splits = {kind: self.splits[kind] for kind in layers}
        repair = make_monotone if self.is_smoothed else unrepaired
        return stage_grids(layers, splits, self.stages.counts, repair)


class StageGrids(NamedTuple):
    """Costs of stages on the points of a grid.

    `points`: Shape (n_rows, n_lengths, n_target_lengths, n_stages, len(Cost)), without boundaries;
    infinite where a layer of the stage cannot run.
    """

    points: FloatArray
    repaired: float


def stage_grids(
    layers: Mapping[str, LayerProfile],
    splits: Mapping[str, SplitTimes],
    counts: Mapping[str, FloatArray],
    repair: Callable[[FloatArray], Repaired] = make_monotone,
) -> StageGrids:
    """Sums of the layers of every stage, after repair of their measurements.

    `counts`: Numbers of layers on every stage by kind, shape (n_stages,). `repair`: Function that
    removes the noise from the measurements of one kind and quantity.
    """
    repaired = {
        (kind, quantity): repair(layer.grid(quantity))
        for kind, layer in layers.items()
        for quantity in QUANTITIES
    }
    grids = {at: repaired_grid.grid for at, repaired_grid in repaired.items()}
    for kind, split in splits.items():
        backward = grids[kind, "backward_ms"]
        weights = np.fmin(split.weight_ms, backward)
        for quantity, times in (("weight_ms", weights), ("splitting_ms", split.splitting_ms)):
            grids[kind, quantity] = np.where(np.isinf(backward), np.inf, times)
    columns = {
        quantity: _on_stages({kind: grids[kind, quantity] for kind in layers}, counts, quantity)
        for quantity in (*QUANTITIES, *SplitTimes._fields)
    }
    n_changed = sum(repaired_grid.n_changed for repaired_grid in repaired.values())
    n_feasible = sum(
        int(np.isfinite(repaired_grid.grid).sum()) for repaired_grid in repaired.values()
    )
    costs = StageCosts.from_times(**columns, boundary_bytes=np.zeros(()))
    return StageGrids(costs.table, n_changed / max(n_feasible, 1))


def _on_stages(
    grids: Mapping[str, FloatArray], counts: Mapping[str, FloatArray], quantity: str
) -> FloatArray:
    parts = [_part(grid, counts[kind], quantity) for kind, grid in grids.items()]
    together = np.maximum if _is_shared(quantity) else np.add
    total = parts[0]
    for part in parts[1:]:
        total = together(total, part)
    return total


def _part(grid: FloatArray, count: FloatArray, quantity: str) -> FloatArray:
    """Amount that a kind of layer adds on every stage; zero on stages without such a layer."""
    factor = count.clip(max=1) if _is_shared(quantity) else count
    on_stages = np.zeros((*grid.shape, len(count)))
    held = count > 0
    on_stages[..., held] = grid[..., np.newaxis] * factor[held]
    return on_stages


def _is_shared(quantity: str) -> bool:
    return Cost[quantity.upper()] in SHARED


def with_finer_lengths(axes: Axes, points: FloatArray) -> tuple[Axes, FloatArray]:
    """Adds the middle between neighbouring lengths of rows, and corners (`with_corners`).

    Attention grows with the square of a row's tokens. Between lengths that double, a straight line
    is up to 11 % above a square. With the middle on the parabola through three measured lengths,
    lines are up to 3 % above that parabola. Costs grow linearly with rows.

    `axes`: Numbers of rows, tokens per row and target tokens, each ascending. `points`: Costs at
    the points of the axes, infinite where infeasible, shape (n_rows, n_lengths, n_target_lengths,
    n_stages, len(Cost)). Returns axes and points with more lengths. A point between feasible ones
    is feasible, and more rows or longer rows never cost less, except that `weight_ms` (within
    `backward_ms` if it was so before) and `splitting_ms` may fall as before.
    """
    rows, row_tokens, target_tokens = axes
    lengths = row_tokens, target_tokens
    with np.errstate(invalid="ignore"):
        points = points.copy()
        points[..., Cost.BACKWARD_MS] -= points[..., Cost.WEIGHT_MS]
        points = with_corners(axes, points)
        for place, axis in zip((ROW_TOKENS, TARGET_TOKENS), lengths, strict=True):
            points = np.moveaxis(_with_middles(axis, np.moveaxis(points, place, 0)), 0, place)
        points[..., Cost.BACKWARD_MS] += points[..., Cost.WEIGHT_MS]
    points = np.where(np.isnan(points), np.inf, points)
    parts = [Cost.WEIGHT_MS, Cost.SPLITTING_MS]
    parts_ms = points[..., parts]
    for place in range(len(axes)):
        points = np.maximum.accumulate(points, axis=place)
    cannot_run = np.isinf(points[..., [Cost.BACKWARD_MS]])
    points[..., parts] = np.where(cannot_run, np.inf, parts_ms)
    finer = rows, _with_middle_lengths(row_tokens), _with_middle_lengths(target_tokens)
    return finer, np.ascontiguousarray(points)


def _with_middle_lengths(axis: IntArray) -> IntArray:
    return np.unique(np.concatenate([axis, (axis[1:] + axis[:-1]) // 2]))


def _with_middles(axis: IntArray, grid: FloatArray) -> FloatArray:
    middles = (axis[1:] + axis[:-1]) // 2
    between = [_middle(axis, grid, i, int(x)) for i, x in enumerate(middles)]
    _, order = np.unique(np.concatenate([axis, middles]), return_index=True)
    both: FloatArray = np.stack([*grid, *between])[order]
    return both


def _middle(axis: IntArray, grid: FloatArray, i: int, x: int) -> FloatArray:
    """Costs between the lengths i and i + 1: on a parabola, but within the costs of the two."""
    left, right = grid[i], grid[i + 1]
    slope = (right - left) / (axis[i + 1] - axis[i])
    line: FloatArray = left + (x - axis[i]) * slope
    if len(axis) < 3:
        return line
    third = i - 1 if i > 0 else 2
    slope_to_third = (grid[third] - left) / (axis[third] - axis[i])
    curvature = (slope - slope_to_third) / (axis[i + 1] - axis[third])
    parabola = line + curvature * (x - axis[i]) * (x - axis[i + 1])
    bounded = np.clip(parabola, np.fmin(left, right), np.fmax(left, right))
    middle: FloatArray = np.where(np.isfinite(parabola), bounded, line)
    return middle


def tokens_of_points(axes: Axes) -> IntArray:
    """Tokens of the micro-batches at the points of a grid, on both sides together."""
    rows, row_tokens, target_tokens = axes
    tokens: IntArray = rows[:, None, None] * (row_tokens[:, None] + target_tokens)
    return tokens


def most_tokens(axes: Axes, points: FloatArray) -> FloatArray:
    """Tokens of the largest feasible point, by kind of stage, shape (n_kinds,).

    `axes`: Numbers of rows, tokens per row and target tokens, each ascending. `points`: Costs,
    infinite where infeasible, shape (n_rows, n_lengths, n_target_lengths, n_kinds, len(Cost)).
    """
    feasible = np.isfinite(points).all(axis=-1)
    most: FloatArray = np.where(feasible, tokens_of_points(axes)[..., None], 0.0).max(
        axis=(0, 1, 2)
    )
    return most


def with_corners(axes: Axes, points: FloatArray) -> FloatArray:
    """Adds corners of cells that only `most_tokens` left unmeasured.

    Micro-batches of that many tokens lie on a curve through the cells of the grid. If rows and
    lengths double, each cell on the curve has a corner beyond it. Its cost is the product of the
    two corners beside it over the opposite corner: exact where costs are a product of rows and a
    function of lengths, or constant. Without it, micro-batches of more than half of `most_tokens`
    could often not be planned. It is for interpolation only: a micro-batch there is too large.

    Returns the points with costs in these corners. A point where memory ran out, with no more
    tokens than the largest feasible one, remains infeasible.
    """
    is_beyond = tokens_of_points(axes)[..., None] > most_tokens(axes, points)
    points = points.copy()
    long_axes = [place for place, axis in enumerate(axes) if len(axis) > 1]
    for _ in long_axes[1:]:  # the corner beyond on all axes comes last
        known = np.isfinite(points).all(axis=-1)
        corners = np.full_like(points, -np.inf)
        for pair in combinations(long_axes, 2):
            one, other, both = (
                _moved(points, axes_moved) for axes_moved in (pair[:1], pair[1:], pair)
            )
            with np.errstate(invalid="ignore", divide="ignore", over="ignore"):
                product = np.where(both > 0, one * other / both, one + other)
            corners = np.fmax(corners, np.where(np.isfinite(product), product, -np.inf))
        added = is_beyond & ~known & np.isfinite(corners).all(axis=-1)
        points[added] = corners[added]
    return points


def _moved(points: FloatArray, places: tuple[int, ...]) -> FloatArray:
    """Points with the values of those before them along some axes; the first are infinite."""
    moved = np.roll(points, [1] * len(places), places)
    for place in places:
        np.moveaxis(moved, place, 0)[0] = np.inf
    return moved
