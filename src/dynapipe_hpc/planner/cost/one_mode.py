"""Cost model with one mode of recomputation."""

from dataclasses import dataclass

from dynapipe_hpc.data.microbatch import Recompute
from dynapipe_hpc.planner.cost.cost_model import FloatArray, Shapes, StageCosts
from dynapipe_hpc.planner.cost.derived_cost import DerivedCost


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
