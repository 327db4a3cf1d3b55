"""Cost model with one mode of recomputation."""

from dataclasses import dataclass

from dynapipe_hpc.data.microbatch import Layout, Recompute
from dynapipe_hpc.planner.cost.cost_model import (
    CostModel,
    FloatArray,
    KnownRows,
    Shapes,
    StageCosts,
)


@dataclass(frozen=True, slots=True)
class OneMode:
    """A `CostModel` with one of the modes of another.

    Attributes:
        cost: The other cost model.
        mode: One of its modes.
    """

    cost: CostModel
    mode: Recompute

    @property
    def description(self) -> str:
        """Human-readable origin of the costs."""
        return self.cost.description

    @property
    def is_encoder_decoder(self) -> bool:
        """Whether rows have a target side of their own."""
        return self.cost.is_encoder_decoder

    @property
    def monotone(self) -> "OneMode":
        """The costs without noise, never above these."""
        return OneMode(self.cost.monotone, self.mode)

    def of_layout(self, layout: Layout) -> "OneMode":
        """The costs of rows whose samples lie in a layout, see `CostModel`."""
        cost = self.cost.of_layout(layout)
        return self if cost is self.cost else OneMode(cost, self.mode)

    @property
    def recompute_modes(self) -> tuple[Recompute, ...]:
        """The one mode."""
        return (self.mode,)

    @property
    def known_rows(self) -> KnownRows:
        """Rows whose costs are known, in all modes."""
        return self.cost.known_rows

    @property
    def static_bytes(self) -> FloatArray:
        """Weights, gradients and optimizer state of every stage, shape (n_stages,)."""
        return self.cost.static_bytes

    @property
    def reduce_ms(self) -> FloatArray:
        """Time of the gradient all-reduce, the same in every mode."""
        return self.cost.reduce_ms

    @property
    def step_ms(self) -> float:
        """Time of the optimizer step, the same in every mode."""
        return self.cost.step_ms

    def stage_costs(
        self,
        shapes: Shapes,
        recompute: Recompute = Recompute.NONE,
        out: FloatArray | None = None,
    ) -> StageCosts:
        """Costs of micro-batches, see `CostModel`."""
        return self.cost.stage_costs(shapes, recompute, out)
