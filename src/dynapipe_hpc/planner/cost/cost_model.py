"""Predicted time and memory of a micro-batch on every stage."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple, Protocol, Self

import numpy as np
import numpy.typing as npt

from dynapipe_hpc.data.microbatch import MicroBatch, Recompute

FloatArray = npt.NDArray[np.float64]
IntArray = npt.NDArray[np.int64]

N_COSTS = 7
"""What is known of a micro-batch on a stage, see `StageCosts`."""


class Shapes(NamedTuple):
    """Sizes of micro-batches. Arrays of shape (n_microbatches,).

    Attributes:
        n_rows: Rows of each, >= 1.
        row_tokens: Padded length of its rows, >= 1.
        target_tokens: Padded length of its rows on the decoder side; 0 in decoder-only models.
    """

    n_rows: IntArray
    row_tokens: IntArray
    target_tokens: IntArray

    @classmethod
    def of(cls, microbatches: Sequence[MicroBatch]) -> Self:
        """Those of micro-batches."""
        sizes = [(m.n_rows, m.row_tokens, m.target_tokens) for m in microbatches]
        return cls(*np.array(sizes, dtype=np.int64).reshape(-1, 3).T)

    def take(self, microbatches: IntArray) -> "Shapes":
        """Those of some micro-batches, in the given order."""
        return Shapes(*(sizes[microbatches] for sizes in self))


@dataclass(frozen=True, slots=True, eq=False)
class StageCosts:
    """What micro-batches cost on every stage.

    An entry that cannot run on its stage is infinite, in time and in memory.

    Attributes:
        table: Shape (n_microbatches, n_stages, N_COSTS), as the kernels read it; the properties are
            its columns, each of shape (n_microbatches, n_stages).
    """

    table: FloatArray

    @classmethod
    def of(
        cls,
        *,
        forward_ms: FloatArray,
        backward_ms: FloatArray,
        weight_ms: FloatArray,
        boundary_bytes: FloatArray,
        stored_bytes: FloatArray,
        forward_transient_bytes: FloatArray,
        backward_transient_bytes: FloatArray,
        out: FloatArray | None = None,
    ) -> Self:
        """Puts columns together, in `out` or a new table; each may broadcast to the first."""
        columns = (
            forward_ms,
            backward_ms,
            weight_ms,
            boundary_bytes,
            stored_bytes,
            forward_transient_bytes,
            backward_transient_bytes,
        )
        table = np.empty((*forward_ms.shape, N_COSTS)) if out is None else out
        for place, column in enumerate(columns):
            table[..., place] = column
        return cls(table)

    @property
    def forward_ms(self) -> FloatArray:
        """Time of the forward pass."""
        return self.table[..., 0]

    @property
    def backward_ms(self) -> FloatArray:
        """Time of the backward pass, gradients of inputs and of weights."""
        return self.table[..., 1]

    @property
    def weight_ms(self) -> FloatArray:
        """Of the backward pass, what the gradients of weights take, which may run later."""
        return self.table[..., 2]

    @property
    def boundary_bytes(self) -> FloatArray:
        """What a stage hands to the next one, which returns as much; 0 on the last stage."""
        return self.table[..., 3]

    @property
    def stored_bytes(self) -> FloatArray:
        """Activations kept from forward to backward."""
        return self.table[..., 4]

    @property
    def forward_transient_bytes(self) -> FloatArray:
        """Needed on top while the forward pass runs."""
        return self.table[..., 5]

    @property
    def backward_transient_bytes(self) -> FloatArray:
        """Needed on top while the backward pass runs."""
        return self.table[..., 6]

    @property
    def n_microbatches(self) -> int:
        """Number of micro-batches."""
        return int(self.table.shape[0])

    @property
    def n_stages(self) -> int:
        """Number of stages."""
        return int(self.table.shape[1])

    @property
    def work_ms(self) -> FloatArray:
        """Forward and backward time, shape (n_microbatches, n_stages)."""
        return self.forward_ms + self.backward_ms

    @classmethod
    def joined(cls, parts: Sequence[Self]) -> Self:
        """The costs of the micro-batches of all parts, one part behind the other."""
        return cls(np.concatenate([part.table for part in parts]))

    def take(self, microbatches: IntArray) -> "StageCosts":
        """The costs of some micro-batches, in the given order."""
        return StageCosts(self.table[microbatches])


class CostModel(Protocol):
    """Predicts what a micro-batch of a given shape costs.

    Contract: finite and positive where feasible, infinite where not. A micro-batch with more
    rows or longer rows never costs less, but for noise of measurements.
    """

    @property
    def description(self) -> str:
        """Where the numbers come from, for people."""
        ...

    @property
    def is_encoder_decoder(self) -> bool:
        """Whether rows have a target side of their own, see `Shapes`."""
        ...

    @property
    def monotone(self) -> "CostModel":
        """The same without noise, never more: for bounds that no plan may beat.

        A micro-batch with more rows or longer rows never costs less in anything, neither in
        `weight_ms` nor in the rest of `backward_ms`.
        """
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
    def reduce_ms(self) -> FloatArray:
        """Shape (n_stages,): adding up gradients over replicas, once a stage has all of them."""
        ...

    @property
    def step_ms(self) -> float:
        """Optimizer step on the slowest stage."""
        ...

    def stage_costs(
        self,
        shapes: Shapes,
        recompute: Recompute = Recompute.NONE,
        out: FloatArray | None = None,
    ) -> StageCosts:
        """Costs of micro-batches of some shapes, all in one of `recompute_modes`.

        Their table is `out`, if that is given: contiguous, of shape (n, n_stages, N_COSTS).
        """
        ...
