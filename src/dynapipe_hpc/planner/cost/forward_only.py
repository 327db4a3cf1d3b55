"""Cost model of forward passes that keep nothing."""

from dataclasses import dataclass

import numpy as np

from dynapipe_hpc.data.microbatch import Recompute
from dynapipe_hpc.planner.cost.cost_model import Cost, FloatArray, Shapes, SliceMemory, StageCosts
from dynapipe_hpc.planner.cost.derived_cost import DerivedCost


@dataclass(frozen=True, slots=True)
class ForwardOnly(DerivedCost):
    """A `CostModel` of evaluation: the forward passes of another, without gradients and updates.

    Its memory is an upper bound: what training keeps of a forward pass where it recomputes the
    most, and needs while it runs, what it will recompute included. Nothing is kept after the pass.
    """

    @property
    def recompute_modes(self) -> tuple[Recompute, ...]:
        """No recomputation, as there is no backward pass."""
        return (Recompute.NONE,)

    @property
    def reduce_ms(self) -> FloatArray:
        """No time, as there are no gradients, shape (n_stages,)."""
        return np.zeros_like(self.cost.reduce_ms)

    @property
    def step_ms(self) -> float:
        """No time, as nothing is updated."""
        return 0.0

    @property
    def slice_memory(self) -> SliceMemory:
        """Keys and values alone, as there are no gradients."""
        kept = self.cost.slice_memory.kept
        return SliceMemory.none(len(kept))._replace(kept=kept)

    @property
    def cache_cost(self) -> Cost:
        """Transient memory, as keys and values stay from the first to the last slice's pass."""
        return Cost.FORWARD_TRANSIENT_BYTES

    @property
    def kind_of_stage(self) -> None:
        """None: costs are made of those on every stage."""
        return None

    def stage_costs(
        self,
        shapes: Shapes,
        recompute: Recompute = Recompute.NONE,  # noqa: ARG002 - there is one mode
        out: FloatArray | None = None,
    ) -> StageCosts:
        """Costs of micro-batches, see `CostModel`."""
        trained = self.cost.stage_costs(shapes, self.cost.recompute_modes[-1])
        nothing = np.zeros_like(trained.forward_ms)
        return StageCosts.from_times(
            forward_ms=trained.forward_ms,
            backward_ms=nothing,
            weight_ms=nothing,
            splitting_ms=nothing,
            boundary_bytes=trained.boundary_bytes,
            stored_bytes=nothing,
            forward_transient_bytes=trained.stored_bytes + trained.forward_transient_bytes,
            backward_transient_bytes=nothing,
            out=out,
        )
