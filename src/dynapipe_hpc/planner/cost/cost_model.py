"""Predicted time and memory of a micro-batch on every stage."""

from collections.abc import Sequence
from dataclasses import dataclass, fields
from typing import Protocol, Self

import numpy as np
import numpy.typing as npt

from dynapipe_hpc.data.microbatch import Recompute

FloatArray = npt.NDArray[np.float64]
IntArray = npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True, eq=False)
class StageCosts:
    """What micro-batches cost on every stage. Arrays of shape (n_microbatches, n_stages).

    An entry that cannot run on its stage is infinite, in time and in memory.

    Attributes:
        forward_ms: Time of the forward pass.
        backward_ms: Time of the backward pass, input and weight gradients.
        stored_bytes: Activations kept from forward to backward.
        forward_transient_bytes: Needed on top while the forward pass runs.
        backward_transient_bytes: Needed on top while the backward pass runs.
        boundary_bytes: Shape (n_microbatches,): one tensor between two stages.
    """

    forward_ms: FloatArray
    backward_ms: FloatArray
    stored_bytes: FloatArray
    forward_transient_bytes: FloatArray
    backward_transient_bytes: FloatArray
    boundary_bytes: FloatArray

    @property
    def n_microbatches(self) -> int:
        """Number of micro-batches."""
        return int(self.forward_ms.shape[0])

    @property
    def n_stages(self) -> int:
        """Number of stages."""
        return int(self.forward_ms.shape[1])

    @property
    def work_ms(self) -> FloatArray:
        """Forward and backward time, shape (n_microbatches, n_stages)."""
        return self.forward_ms + self.backward_ms

    @classmethod
    def joined(cls, parts: Sequence[Self]) -> Self:
        """The costs of the micro-batches of all parts, one part behind the other."""
        names = [field.name for field in fields(cls)]
        return cls(*(np.concatenate([getattr(part, name) for part in parts]) for name in names))

    def take(self, microbatches: IntArray) -> "StageCosts":
        """The costs of some micro-batches, in the given order."""
        return StageCosts(
            self.forward_ms[microbatches],
            self.backward_ms[microbatches],
            self.stored_bytes[microbatches],
            self.forward_transient_bytes[microbatches],
            self.backward_transient_bytes[microbatches],
            self.boundary_bytes[microbatches],
        )


class CostModel(Protocol):
    """Predicts what a micro-batch of a given shape costs.

    Contract: finite and positive where feasible, infinite where not; a micro-batch with more
    rows or longer rows never costs less.
    """

    @property
    def description(self) -> str:
        """Where the numbers come from, for people."""
        ...

    @property
    def recompute_modes(self) -> tuple[Recompute, ...]:
        """The modes whose costs are known and that a plan may use, at least one, ascending."""
        ...

    @property
    def static_bytes(self) -> FloatArray:
        """Shape (n_stages,): weights, gradients and optimizer state."""
        ...

    @property
    def update_ms(self) -> float:
        """Time at the end of an iteration: gradient reduction and optimizer step."""
        ...

    def stage_costs(
        self, n_rows: IntArray, row_tokens: IntArray, recompute: Recompute = Recompute.NONE
    ) -> StageCosts:
        """Costs of micro-batches.

        Args:
            n_rows: Shape (n_microbatches,), rows of each, >= 1.
            row_tokens: Shape (n_microbatches,), padded length of each, >= 1.
            recompute: Of all of them, one of `recompute_modes`.
        """
        ...
