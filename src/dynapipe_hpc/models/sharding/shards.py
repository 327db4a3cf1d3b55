"""The ranks that hold the shards of one stage, and how tensors pass between them.

Source: Shoeybi et al., "Megatron-LM", arXiv:1909.08053, section 3.
"""

from collections.abc import Callable
from typing import Any, Protocol

from torch import Tensor
from torch.autograd import Function


class Shards(Protocol):
    """The ranks over which every layer of a stage is cut, seen from one of them.

    Contract: all shards call alike, in the same order, and get the same bits.

    `shard`: The one that this rank holds. `sequence_parallel`: Whether shards divide the tokens of
    the residual stream among them.
    """

    shard: int
    n_shards: int
    sequence_parallel: bool

    def sum_over_shards(self, values: Tensor) -> Tensor:
        """The sum of a tensor over shards (all-reduce).

        16-bit numbers are added in float32 and rounded once, unless `cluster.shard_sums` says
        otherwise.
        """
        ...

    def sum_own_over_shards(self, values: Tensor) -> Tensor:
        """This shard's part of the sum (reduce-scatter): of equal parts in the first dimension."""
        ...

    def gather_over_shards(self, values: Tensor) -> Tensor:
        """The tensors of all shards (all-gather), joined in the first dimension."""
        ...


class OneShard:
    """The `Shards` of a stage that is not cut."""

    shard = 0
    n_shards = 1
    sequence_parallel = False

    def sum_over_shards(self, values: Tensor) -> Tensor:
        """The tensor itself."""
        return values

    def sum_own_over_shards(self, values: Tensor) -> Tensor:
        """The tensor itself."""
        return values

    def gather_over_shards(self, values: Tensor) -> Tensor:
        """The tensor itself."""
        return values


ONE_SHARD = OneShard()


def copy_to_shards(values: Tensor, shards: Shards) -> Tensor:
    """A tensor that all shards hold, on its way to where each computes with it in its own way.

    The backward pass adds up what each shard's way contributes to its gradient (the operator f).
    """
    if shards.n_shards == 1:
        return values
    return passed(values, lambda each: each.view_as(each), shards.sum_over_shards)


def reduce_from_shards(values: Tensor, shards: Shards) -> Tensor:
    """The sum of what every shard computed; all go on with it in the same way (the operator g).

    So in the backward pass each has the sum's gradient, which is that of its own part.
    """
    if shards.n_shards == 1:
        return values
    return passed(values, lambda each: shards.sum_over_shards(each.detach()), lambda each: each)


def passed(
    values: Tensor, forward: Callable[[Tensor], Tensor], backward: Callable[[Tensor], Tensor]
) -> Tensor:
    """The result of a function, of whose gradient another one makes that of its input."""
    output: Tensor = _Passed.apply(values, forward, backward)  # type: ignore[no-untyped-call]
    return output


class _Passed(Function):
    @staticmethod
    def forward(
        context: Any,
        values: Tensor,
        forward: Callable[[Tensor], Tensor],
        backward: Callable[[Tensor], Tensor],
    ) -> Tensor:
        context.pass_back = backward
        return forward(values)

    @staticmethod
    def backward(context: Any, *gradients: Tensor) -> tuple[Tensor, None, None]:
        return context.pass_back(gradients[0]), None, None
