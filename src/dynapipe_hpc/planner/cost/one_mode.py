"""A cost model of which a plan may use one mode of recomputation."""

from dataclasses import dataclass

from dynapipe_hpc.data.microbatch import Recompute
from dynapipe_hpc.planner.cost.cost_model import CostModel, FloatArray, Shapes, StageCosts


@dataclass(frozen=True, slots=True)
class OneMode:
    """A `CostModel` that knows one of another's modes.

    Attributes:
        cost: The other.
        mode: One of its modes.
    """

    cost: CostModel
    mode: Recompute

    @property
    def description(self) -> str:
        """Where the numbers come from, for people."""
        return self.cost.description

    @property
    def is_encoder_decoder(self) -> bool:
        """Whether rows have a target side of their own."""
        return self.cost.is_encoder_decoder

    @property
    def monotone(self) -> "OneMode":
        """The same without noise, never more."""
        return OneMode(self.cost.monotone, self.mode)

    @property
    def recompute_modes(self) -> tuple[Recompute, ...]:
        """The one mode."""
        return (self.mode,)

    @property
    def static_bytes(self) -> FloatArray:
        """Shape (n_stages,): weights, gradients and optimizer state."""
        return self.cost.static_bytes

    @property
    def reduce_ms(self) -> FloatArray:
        """As of all modes."""
        return self.cost.reduce_ms

    @property
    def step_ms(self) -> float:
        """As of all modes."""
        return self.cost.step_ms

    def stage_costs(
        self,
        shapes: Shapes,
        recompute: Recompute = Recompute.NONE,
        out: FloatArray | None = None,
    ) -> StageCosts:
        """Costs of micro-batches, see `CostModel`."""
        return self.cost.stage_costs(shapes, recompute, out)
