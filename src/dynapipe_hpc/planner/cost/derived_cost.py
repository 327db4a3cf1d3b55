"""Cost models that are another one but for a part: a base, and one mode of recomputation."""

from dataclasses import dataclass, replace
from typing import Self

from dynapipe_hpc.data.microbatch import Layout, Recompute
from dynapipe_hpc.planner.cost.cost_model import (
    Cost,
    CostModel,
    FloatArray,
    Kinds,
    KnownRows,
    Shapes,
    SliceMemory,
    StageCosts,
)


@dataclass(frozen=True, slots=True, eq=False)
class DerivedCost:
    """The part of a `CostModel` in which it is another one.

    Attributes:
        cost: The other cost model.
    """

    cost: CostModel

    @property
    def description(self) -> str:
        """Human-readable origin of the costs."""
        return self.cost.description

    @property
    def is_encoder_decoder(self) -> bool:
        """Whether rows have a target side of their own."""
        return self.cost.is_encoder_decoder

    @property
    def monotone(self) -> Self:
        """The costs without noise, never above these."""
        return replace(self, cost=self.cost.monotone)

    def of_layout(self, layout: Layout) -> Self:
        """The costs of rows whose samples lie in a layout, see `CostModel`."""
        cost = self.cost.of_layout(layout)
        return self if cost is self.cost else replace(self, cost=cost)

    @property
    def known_rows(self) -> KnownRows:
        """Rows whose costs are known, in all modes."""
        return self.cost.known_rows

    @property
    def slowness(self) -> FloatArray | None:
        """Factors by which the stages of replicas take longer, see `CostModel`."""
        return self.cost.slowness

    @property
    def kind_of_stage(self) -> Kinds | None:
        """Kind of each stage, shape (n_stages,), or None."""
        return self.cost.kind_of_stage

    @property
    def slice_memory(self) -> SliceMemory:
        """Memory of the slices of a sample."""
        return self.cost.slice_memory

    @property
    def window(self) -> float:
        """Number of tokens that layers with a window see; infinite without."""
        return self.cost.window

    @property
    def cache_cost(self) -> Cost:
        """Column of keys and values, see `CostModel`."""
        return self.cost.cache_cost

    @property
    def static_bytes(self) -> FloatArray:
        """Weights, gradients and optimizer state of every stage, which stay, shape (n_stages,)."""
        return self.cost.static_bytes

    @property
    def recompute_modes(self) -> tuple[Recompute, ...]:
        """Modes of recomputation that a plan may use."""
        return self.cost.recompute_modes

    @property
    def reduce_ms(self) -> FloatArray:
        """Time of the gradient all-reduce over replicas, shape (n_stages,)."""
        return self.cost.reduce_ms

    @property
    def step_ms(self) -> float:
        """Time of the optimizer step on the slowest stage."""
        return self.cost.step_ms

    def stage_costs(
        self,
        shapes: Shapes,
        recompute: Recompute = Recompute.NONE,
        out: FloatArray | None = None,
    ) -> StageCosts:
        """Costs of micro-batches, see `CostModel`."""
        return self.cost.stage_costs(shapes, recompute, out)


@dataclass(frozen=True, slots=True)
class OneMode(DerivedCost):
    """A `CostModel` with one of the modes of another.

    Attributes:
        mode: One of its modes.
    """

    mode: Recompute

    @property
    def recompute_modes(self) -> tuple[Recompute, ...]:
        """The one mode."""
        return (self.mode,)
