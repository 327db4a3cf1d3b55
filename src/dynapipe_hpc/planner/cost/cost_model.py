"""Predicted time and memory of a micro-batch on every stage."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from enum import IntEnum
from typing import NamedTuple, Self

import numpy as np
import numpy.typing as npt

from dynapipe_hpc import _kernels
from dynapipe_hpc.data.microbatch import Layout, Recompute

FloatArray = npt.NDArray[np.float64]
IntArray = npt.NDArray[np.int64]
Kinds = npt.NDArray[np.int32]
Counts = npt.NDArray[np.uint32]
Sizes = IntArray | FloatArray


class Cost(IntEnum):
    """Columns of the table of `StageCosts`; the kernels number them in the same way.

    Attributes:
        FORWARD_MS: Time of the forward pass.
        BACKWARD_MS: Time of the backward pass, for gradients of inputs and of weights.
        WEIGHT_MS: Weight-gradient part of the backward pass, which may be deferred.
        SPLITTING_MS: Time by which a backward pass takes longer if that part is deferred.
        BOUNDARY_BYTES: Activations sent to the next stage; the gradients sent back have the same
            size. 0 on the last stage.
        STORED_BYTES: Activations stored from the forward pass to the backward pass.
        FORWARD_TRANSIENT_BYTES: Memory needed in addition while the forward pass runs.
        BACKWARD_TRANSIENT_BYTES: Memory needed in addition while the backward pass runs.
    """

    FORWARD_MS = 0
    BACKWARD_MS = 1
    WEIGHT_MS = 2
    SPLITTING_MS = 3
    BOUNDARY_BYTES = 4
    STORED_BYTES = 5
    FORWARD_TRANSIENT_BYTES = 6
    BACKWARD_TRANSIENT_BYTES = 7


TIMES = [Cost.FORWARD_MS, Cost.BACKWARD_MS, Cost.WEIGHT_MS, Cost.SPLITTING_MS]
"""Names of the costs that are times."""

SHARED = (Cost.FORWARD_TRANSIENT_BYTES, Cost.BACKWARD_TRANSIENT_BYTES)
"""Costs for which a stage has the maximum over its parts, which run in turn; other costs add up."""


class KnownRows(NamedTuple):
    """Rows whose costs a model knows.

    Attributes:
        n_rows: Numbers of rows, ascending, between which costs are straight lines at every length,
            and beyond which nothing is known. If empty, any number is known, and passes of more
            rows never take more time per row.
        most: Largest number of rows that is known in every layout and mode.
        least_tokens: Length below which rows cost as much as rows of this length.
        longest_tokens: Largest length that is known in every layout and mode; 1 if all lengths are.
    """

    n_rows: Sequence[int] = ()
    most: float = np.inf
    least_tokens: int = 1
    longest_tokens: int = 1


EVERY_ROW = KnownRows()


class Shapes(NamedTuple):
    """Sizes of micro-batches. Arrays of shape (n_microbatches,).

    Attributes:
        n_rows: Rows of each, >= 1; a packed micro-batch may have fractions, see equal_rows.hpp.
            Less than one for a micro-batch with a slice of a sample, whose tokens also attend to
            tokens before the slice: (tokens)^2 / pairs.
        row_tokens: Padded length of its rows, > 0; may be a fraction, too.
        target_tokens: Padded length of its rows on the decoder side; 0 in decoder-only models.
        input_rows: Number of rows to look up parts that only inputs pass through: `n_rows`, except
            in packed micro-batches of pairs, see equal_rows.hpp.
    """

    n_rows: Sizes
    row_tokens: Sizes
    target_tokens: Sizes
    input_rows: Sizes

    @classmethod
    def padded(cls, n_rows: Sizes, row_tokens: Sizes, target_tokens: Sizes) -> "Shapes":
        """Sizes of micro-batches whose rows have inputs and targets, or only one of these sides."""
        return cls(n_rows, row_tokens, target_tokens, n_rows)

    @property
    def input_row_tokens(self) -> Sizes:
        """Length of `input_rows`, which have the same number of tokens as all rows."""
        return self.row_tokens * (self.n_rows / self.input_rows)

    def take(self, microbatches: IntArray) -> "Shapes":
        """Sizes of some of the micro-batches, in the given order."""
        return Shapes(*(sizes[microbatches] for sizes in self))


@dataclass(frozen=True, slots=True, eq=False)
class StageCosts:
    """Time and memory of micro-batches on every stage.

    Costs of a micro-batch that cannot run on a stage are infinite, times and bytes alike.

    The properties are columns, see `Cost`, each of shape (n_microbatches, n_stages).

    Attributes:
        of_kinds: Costs on stages of every kind, shape (n_microbatches, n_kinds, len(Cost)).
        kind_of_stage: Kind of each stage, shape (n_stages,); None if each has a kind of its own.
        later_slices: Number of later slices of its sample, which come right after it, for each
            micro-batch, shape (n_microbatches,); None if there are no slices.
        reduce_ms: Time from each stage's last pass until its gradients are reduced, shape
            (n_stages,); None to leave it out. Set when a replica is scheduled: `take`, `slowed` and
            `joined` leave it out.
    """

    of_kinds: FloatArray
    kind_of_stage: Kinds | None = None
    later_slices: Counts | None = None
    reduce_ms: FloatArray | None = None
    _checked: list[_kernels.CostTable] = field(default_factory=list, init=False, repr=False)

    @classmethod
    def from_times(
        cls,
        *,
        forward_ms: FloatArray,
        backward_ms: FloatArray,
        weight_ms: FloatArray,
        splitting_ms: FloatArray,
        boundary_bytes: FloatArray,
        stored_bytes: FloatArray,
        forward_transient_bytes: FloatArray,
        backward_transient_bytes: FloatArray,
        out: FloatArray | None = None,
    ) -> Self:
        """Costs given as columns, in `out` or a new table; all broadcast to `forward_ms`."""
        columns = {
            Cost.FORWARD_MS: forward_ms,
            Cost.BACKWARD_MS: backward_ms,
            Cost.WEIGHT_MS: weight_ms,
            Cost.SPLITTING_MS: splitting_ms,
            Cost.BOUNDARY_BYTES: boundary_bytes,
            Cost.STORED_BYTES: stored_bytes,
            Cost.FORWARD_TRANSIENT_BYTES: forward_transient_bytes,
            Cost.BACKWARD_TRANSIENT_BYTES: backward_transient_bytes,
        }
        table = np.empty((*forward_ms.shape, len(Cost))) if out is None else out
        for cost, column in columns.items():
            table[..., cost] = column
        return cls(table)

    @property
    def checked(self) -> _kernels.CostTable:
        """The table as an argument for kernels, checked once; its arrays become read-only."""
        if not self._checked:
            self._checked.append(_kernels.CostTable(self.of_kinds, self.kind_of_stage))
        return self._checked[0]

    @property
    def table(self) -> FloatArray:
        """Costs on every stage, shape (n_microbatches, n_stages, len(Cost))."""
        return self._on_stages(self.of_kinds)

    @property
    def forward_ms(self) -> FloatArray:
        """Time of the forward pass."""
        return self._column(Cost.FORWARD_MS)

    @property
    def backward_ms(self) -> FloatArray:
        """Time of the backward pass, for gradients of inputs and of weights."""
        return self._column(Cost.BACKWARD_MS)

    @property
    def weight_ms(self) -> FloatArray:
        """Weight-gradient part of the backward pass; it may be deferred."""
        return self._column(Cost.WEIGHT_MS)

    @property
    def splitting_ms(self) -> FloatArray:
        """Time by which a backward pass takes longer if its weight gradients are deferred."""
        return self._column(Cost.SPLITTING_MS)

    @property
    def boundary_bytes(self) -> FloatArray:
        """Activations sent to the next stage, and gradients sent back; 0 on the last stage."""
        return self._column(Cost.BOUNDARY_BYTES)

    @property
    def stored_bytes(self) -> FloatArray:
        """Activations stored from the forward pass to the backward pass."""
        return self._column(Cost.STORED_BYTES)

    @property
    def forward_transient_bytes(self) -> FloatArray:
        """Memory needed in addition while the forward pass runs."""
        return self._column(Cost.FORWARD_TRANSIENT_BYTES)

    @property
    def backward_transient_bytes(self) -> FloatArray:
        """Memory needed in addition while the backward pass runs."""
        return self._column(Cost.BACKWARD_TRANSIENT_BYTES)

    @property
    def n_microbatches(self) -> int:
        """Number of micro-batches."""
        return int(self.of_kinds.shape[0])

    @property
    def n_stages(self) -> int:
        """Number of stages."""
        return self.of_kinds.shape[1] if self.kind_of_stage is None else len(self.kind_of_stage)

    @property
    def work_ms(self) -> FloatArray:
        """Forward and backward time, shape (n_microbatches, n_stages)."""
        return self.forward_ms + self.backward_ms

    @property
    def bottleneck_ms(self) -> FloatArray:
        """Work on each micro-batch's own slowest stage, shape (n_microbatches,)."""
        return np.asarray(self.work_ms.max(axis=1))

    @classmethod
    def joined(cls, parts: Sequence[Self]) -> Self:
        """The costs of the micro-batches of all parts, one part after the other."""
        return cls(np.concatenate([part.of_kinds for part in parts]), parts[0].kind_of_stage)

    def slowed(self, factors: FloatArray) -> "StageCosts":
        """The costs with all passes slowed by a factor per stage, shape (n_stages,)."""
        table = self.table.copy()
        table[..., TIMES] *= factors[:, None]
        return StageCosts(table, later_slices=self.later_slices)

    def take(self, microbatches: IntArray) -> "StageCosts":
        """The costs of some micro-batches, in the given order, by stage rather than by kind.

        Slices, if there are any, keep their `later_slices`.
        """
        later = None if self.later_slices is None else self.later_slices[microbatches]
        has_slices = later is not None and bool(later.any())
        on_stages = self._on_stages(self.of_kinds[microbatches])
        return StageCosts(on_stages, later_slices=later if has_slices else None)

    def _column(self, cost: Cost) -> FloatArray:
        return self._on_stages(self.of_kinds[..., cost])

    def _on_stages(self, of_kinds: FloatArray) -> FloatArray:
        kinds = self.kind_of_stage
        return of_kinds if kinds is None else of_kinds.take(kinds, axis=1)


class SliceMemory(NamedTuple):
    """Bytes per token of a sliced sample on every stage, shape (n_stages,) each.

    Attributes:
        kept: Keys and values, from the forward to the backward pass of the first slice.
        sums: Sums of gradients of keys and values, from the backward pass of the last slice to the
            backward pass of the token's slice.
        spared: Keys and values that a row keeps without recomputation; a slice does not, as it
            reads them from `kept`.
    """

    kept: FloatArray
    sums: FloatArray
    spared: FloatArray

    @classmethod
    def none(cls, n_stages: int) -> Self:
        """Zeros, where samples are not sliced."""
        return cls(*np.zeros((3, n_stages)))

    def of_kinds(self, kind_of_stage: Kinds | None) -> "SliceMemory":
        """The same bytes, by kind of stage instead of by stage."""
        if kind_of_stage is None:
            return self
        _, first = np.unique(kind_of_stage, return_index=True)
        return SliceMemory(*(of_stages[first] for of_stages in self))


Price = Callable[[Shapes, Layout, Recompute, FloatArray | None], StageCosts]
"""Costs of micro-batches in a layout and mode, in a given table or in a new one."""


@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class CostModel:
    """A prediction of the time and memory of micro-batches, by their shapes.

    Contract: costs are finite and positive where a micro-batch can run, infinite where it cannot.
    A micro-batch with more rows or longer rows never costs less, except for noise in measurements.

    Attributes:
        price: What micro-batches cost.
        describe: Human-readable origin of the costs.
        recompute_modes: Modes of recomputation that a plan may use, ascending; at least one.
        static_bytes: Weights, gradients and optimizer state of every stage, shape (n_stages,).
        slice_memory: Memory of the slices of a sample; nothing if samples cannot be sliced.
        reduce_ms: Time of the gradient all-reduce over replicas, shape (n_stages,).
        step_ms: Time of the optimizer step on the slowest stage.
        is_encoder_decoder: Whether rows have a target side of their own, see `Shapes`.
        bound: Costs without noise and never above this model's, for bounds that no plan can beat.
            No column falls with more rows or longer rows, `weight_ms` and the rest of `backward_ms`
            included. None if this holds for the model's own costs.
        layout: How samples lie in rows. Packed micro-batches are looked up as equal rows, see
            equal_rows.hpp.
        layouts: Layouts with their own costs; other layouts cost the same as padded rows.
        known_rows: Rows whose costs are known.
        slowness: Factors >= 1 by which passes of a stage take longer on a replica than the costs
            say, shape (n_replicas, n_stages); None if replicas are equally fast.
        kind_of_stage: Kind of each stage, shape (n_stages,), or None; see `StageCosts`.
        window: Number of tokens that layers with a window see; infinite without, see `ModelShape`.
        cache_cost: Column that includes keys and values: if transient, for every slice, else for
            the first slice only.
    """

    price: Price
    describe: Callable[[], str]
    recompute_modes: tuple[Recompute, ...]
    static_bytes: FloatArray
    slice_memory: SliceMemory
    reduce_ms: FloatArray
    step_ms: float
    is_encoder_decoder: bool = False
    bound: Price | None = None
    layout: Layout = Layout.PADDED
    layouts: tuple[Layout, ...] = (Layout.PADDED,)
    known_rows: KnownRows = EVERY_ROW
    slowness: FloatArray | None = None
    kind_of_stage: Kinds | None = None
    window: float = np.inf
    cache_cost: Cost = Cost.STORED_BYTES

    @property
    def monotone(self) -> "CostModel":
        """The costs of `bound`."""
        return self if self.bound is None else replace(self, price=self.bound, bound=None)

    def of_layout(self, layout: Layout) -> "CostModel":
        """The costs of rows in the given layout."""
        known = layout if layout in self.layouts else Layout.PADDED
        return self if known is self.layout else replace(self, layout=known)

    def of_mode(self, mode: Recompute) -> "CostModel":
        """The costs in one of the modes."""
        return replace(self, recompute_modes=(mode,))

    def stage_costs(
        self,
        shapes: Shapes,
        recompute: Recompute = Recompute.NONE,
        out: FloatArray | None = None,
    ) -> StageCosts:
        """Costs of micro-batches.

        Args:
            shapes: Sizes of the micro-batches.
            recompute: Mode of all of them, one of `recompute_modes`.
            out: Table to write the costs to, contiguous, shape (n, n_kinds, len(Cost)).
        """
        return self.price(shapes, self.layout, recompute, out)


def forward_costs(cost: CostModel) -> CostModel:
    """The costs of evaluation: forward passes, without gradients and updates.

    Memory is an upper bound: what training with the most recomputation keeps of a forward pass,
    plus what the pass needs while it runs, including what training would recompute. Nothing is kept
    after the pass: keys and values of slices are transient.
    """
    mode, kept = cost.recompute_modes[-1], cost.slice_memory.kept

    def price(shapes: Shapes, layout: Layout, _: Recompute, out: FloatArray | None) -> StageCosts:
        trained = cost.price(shapes, layout, mode, None)
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

    return replace(
        cost,
        price=price,
        bound=cost.bound and forward_costs(cost.monotone).price,
        recompute_modes=(Recompute.NONE,),
        reduce_ms=np.zeros_like(cost.reduce_ms),
        step_ms=0.0,
        slice_memory=SliceMemory.none(len(kept))._replace(kept=kept),
        cache_cost=Cost.FORWARD_TRANSIENT_BYTES,
        kind_of_stage=None,
    )
