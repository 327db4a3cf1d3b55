"""Costs by functions that the user gives."""

import math
import sys
from collections.abc import Callable
from dataclasses import dataclass
from typing import Self

import numpy as np

from dynapipe_hpc.data.errors import InputError, quoted
from dynapipe_hpc.data.microbatch import Layout, Recompute
from dynapipe_hpc.planner.cost.cost_model import (
    CostModel,
    FloatArray,
    IntArray,
    Shapes,
    SliceMemory,
    StageCosts,
)

OfRows = Callable[[float, float], float]
"""Function of a micro-batch's number of rows and of their length in tokens."""

BACKWARD_SHARE = 2 / 3
"""Part of the time of both passes that the backward pass takes."""
FLOAT32_BYTES = 4
Limits = tuple[float, float]
PASS_MS: Limits = (1e-100, 1e100)
"""Limits of times, within which shares are not zero and sums are finite."""
MIN_SHARE = 1e-100


def _nothing(_n_rows: float, _row_tokens: float) -> float:
    return 0.0


@dataclass(frozen=True, slots=True)
class FunctionCost:
    """Costs by plain functions of the padded lengths of a micro-batch.

    All rows of a micro-batch have one length, so that `[row_tokens] * n_rows` are its lengths. Both
    are integers, except in packed micro-batches: these cost the same as equal rows with the same
    numbers of tokens and of pairs of tokens within a sample (the same sum of squared lengths).

    Neither function may fall with more rows or longer rows; infinity means that a micro-batch
    cannot run. The gradient all-reduce and the update take no time here, as no plan changes them.

    Attributes:
        pass_ms: Time of the forward and the backward pass together, through all stages, from 1e-100
            to 1e100 ms.
        kept_bytes: Memory that the micro-batch keeps between these passes, on all stages together.
            As only its ratio to `Cluster.device_memory_bytes` counts, the unit of both may be
            tokens instead of bytes.
        stage_shares: Each stage's share of time and memory; one stage if left out.
        hidden_size: Width of the tensors between stages, in float32.
    """

    pass_ms: OfRows
    kept_bytes: OfRows = _nothing
    stage_shares: tuple[float, ...] = (1.0,)
    hidden_size: int = 1

    def __post_init__(self) -> None:
        """Refuses stage_shares that do not add up to 1, and a width below 1.

        Raises:
            InputError: A share is below 1e-100, they do not add up to 1, or the width is below 1.
        """
        shares = self.stage_shares
        if (
            not shares
            or not min(shares) >= MIN_SHARE
            or not math.isclose(sum(shares), 1, rel_tol=1e-6)
        ):
            raise InputError(
                f"stage_shares are {quoted(shares)}; give every stage one of at least "
                f"{MIN_SHARE:g}, with the sum 1"
            )
        if self.hidden_size < 1:
            raise InputError(f"hidden_size is {quoted(self.hidden_size)}, but must be at least 1")

    @classmethod
    def of_tokens(
        cls, pass_ms: Callable[[float], float], kept_bytes: Callable[[float], float] | None = None
    ) -> Self:
        """Costs on one stage that depend only on the tokens of a micro-batch, padding included.

        Args:
            pass_ms: Time of both passes, by tokens.
            kept_bytes: Memory kept, by tokens; none if left out.
        """
        if kept_bytes is None:
            return cls(lambda n_rows, row_tokens: pass_ms(n_rows * row_tokens))
        return cls(
            lambda n_rows, row_tokens: pass_ms(n_rows * row_tokens),
            lambda n_rows, row_tokens: kept_bytes(n_rows * row_tokens),
        )

    def cost_model(self) -> CostModel:
        """The costs of micro-batches; zero for model state, all-reduce and update.

        Its `price` raises an InputError if a function returns no valid number, or less for a larger
        micro-batch.
        """
        nothing = np.zeros(len(self.stage_shares))
        return CostModel(
            price=self._price,
            describe=lambda: "a function given in Python",
            recompute_modes=(Recompute.NONE,),
            static_bytes=nothing,
            slice_memory=SliceMemory.none(len(nothing)),
            reduce_ms=nothing,
            step_ms=0.0,
        )

    def _price(
        self, shapes: Shapes, _layout: Layout, _mode: Recompute, out: FloatArray | None
    ) -> StageCosts:
        sizes = np.stack([shapes.n_rows, shapes.row_tokens], axis=1).astype(np.float64)
        distinct, which = np.unique(sizes, axis=0, return_inverse=True)
        which = which.reshape(-1)
        both_ms = _values("pass_ms", self.pass_ms, distinct, PASS_MS)[which]
        kept = _values("kept_bytes", self.kept_bytes, distinct, (0.0, sys.float_info.max))[which]
        runs = np.isfinite(both_ms) & np.isfinite(kept)
        shares = np.array(self.stage_shares)
        stage_ms = np.where(runs, both_ms, np.inf)[:, np.newaxis] * shares
        nothing = np.where(runs, 0.0, np.inf)[:, np.newaxis]
        sent = sizes.prod(axis=1) * self.hidden_size * FLOAT32_BYTES
        sends = np.arange(len(shares)) < len(shares) - 1
        return StageCosts.from_times(
            forward_ms=(1 - BACKWARD_SHARE) * stage_ms,
            backward_ms=BACKWARD_SHARE * stage_ms,
            weight_ms=BACKWARD_SHARE / 2 * stage_ms,
            splitting_ms=nothing,
            boundary_bytes=np.where(sends, sent[:, np.newaxis], 0.0),
            stored_bytes=np.where(runs, kept, np.inf)[:, np.newaxis] * shares,
            forward_transient_bytes=nothing,
            backward_transient_bytes=nothing,
            out=out,
        )


def _values(name: str, function: OfRows, sizes: FloatArray, limits: Limits) -> FloatArray:
    values = np.array([_value(name, function, size, limits) for size in sizes.tolist()])
    by_rows = np.arange(len(sizes))
    for same, order in ((0, by_rows), (1, np.lexsort(sizes.T))):
        _check_never_falls(name, sizes[order], values[order], same)
    return values


def _value(name: str, function: OfRows, size: list[float], limits: Limits) -> float:
    n, tokens = (int(each) if each.is_integer() else each for each in size)
    answer = function(n, tokens)
    try:
        value = float(answer)
    except (TypeError, ValueError, OverflowError):
        value = math.nan
    least, most = limits
    if not (least <= value <= most or value == math.inf):
        raise InputError(
            f"{name}({n:g}, {tokens:g}) of the cost function is {quoted(answer)}; return a number "
            f"from {least:g} to {most:g}, or inf for a micro-batch that cannot run"
        )
    return value


def _check_never_falls(name: str, sizes: FloatArray, values: FloatArray, same: int) -> None:
    """Refuses costs that fall between neighbours where one size grows and the other is equal."""
    lesser = values[1:] < values[:-1] * (1 - 1e-9)
    falls: IntArray = np.flatnonzero(lesser & (sizes[1:, same] == sizes[:-1, same]))
    if falls.size:
        small, large = ("{:g}, {:g}".format(*sizes[falls[0] + i]) for i in (0, 1))
        raise InputError(
            f"{name}({large}) of the cost function is {values[falls[0] + 1]:g}, less than "
            f"{name}({small}), which is {values[falls[0]]:g}; a micro-batch of more or longer "
            "rows must not cost less"
        )
