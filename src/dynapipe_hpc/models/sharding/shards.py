"""The ranks that hold the shards of one stage, how tensors pass between them, and cut weights.

Source: Shoeybi et al., "Megatron-LM", arXiv:1909.08053, section 3.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Protocol

import torch
from torch import Tensor, nn
from torch.autograd import Function


class Shards(Protocol):
    """The ranks over which every layer of a stage is cut, seen from one of them.

    Contract: all shards make the same calls in the same order, and get the same bits.
    """

    shard: int  # number of this rank's shard
    n_shards: int
    sequence_parallel: bool  # whether shards divide the tokens of the residual stream among them

    def sum_over_shards(self, values: Tensor) -> Tensor:
        """The sum of a tensor over shards (all-reduce).

        16-bit numbers are added in float32 and rounded once, unless `cluster.shard_sums` says
        otherwise.
        """
        ...

    def sum_own_over_shards(self, values: Tensor) -> Tensor:
        """This shard's part of the sum (reduce-scatter), cut equally along the first dimension."""
        ...

    def gather_over_shards(self, values: Tensor) -> Tensor:
        """The tensors of all shards (all-gather), joined along the first dimension."""
        ...


class OneShard:
    """The `Shards` of a stage that is not cut."""

    shard = 0
    n_shards = 1
    sequence_parallel = False

    def sum_over_shards(self, values: Tensor) -> Tensor:
        """The tensor itself."""
        return values

    sum_own_over_shards = gather_over_shards = sum_over_shards


ONE_SHARD = OneShard()


def copy_to_shards(values: Tensor, shards: Shards) -> Tensor:
    """A tensor that all shards hold, for computation that differs between shards.

    The backward pass sums over shards what each contributes to the gradient (the operator f).
    """
    if shards.n_shards == 1:
        return values
    return passed(values, lambda each: each.view_as(each), shards.sum_over_shards)


def reduce_from_shards(values: Tensor, shards: Shards) -> Tensor:
    """The sum of what every shard computed, for the same use on all shards (the operator g).

    In the backward pass, each shard has the sum's gradient, which is also its own part's gradient.
    """
    if shards.n_shards == 1:
        return values
    return passed(values, lambda each: shards.sum_over_shards(each.detach()), lambda each: each)


def passed(
    values: Tensor, forward: Callable[[Tensor], Tensor], backward: Callable[[Tensor], Tensor]
) -> Tensor:
    """The result of `forward`; `backward` maps the result's gradient to the input's gradient."""
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


@dataclass(frozen=True, slots=True)
class Split:
    """Division of a weight into equal shards.

    `n_blocks`: Number of equal blocks along the dimension; a shard gets a part of each, such as the
    queries, keys and values of its heads. `whole_size`: Size of the complete weight in that
    dimension, of one block; beyond its end, zeros fill up the last shards. None if shards divide
    the size.
    """

    dimension: int
    n_blocks: int
    shard: int
    n_shards: int
    whole_size: int | None = None

    def whole_shape(self, shape: torch.Size) -> torch.Size:
        """The shape of the complete weight, from the shape of a shard."""
        sizes = list(shape)
        sizes[self.dimension] = self.whole_size or self.n_shards * sizes[self.dimension]
        return torch.Size(sizes)

    def own_part(self, shard: Tensor) -> Tensor:
        """View of the shard held, without fill beyond the end of the weight."""
        size = shard.shape[self.dimension]
        whole_size = self.whole_size or self.n_shards * size
        return shard.narrow(self.dimension, 0, min(size, max(0, whole_size - self.shard * size)))

    def part_of(self, whole: Tensor) -> Tensor:
        """This shard of a complete weight."""
        if n_padding := -whole.shape[self.dimension] % self.n_shards if self.whole_size else 0:
            shape = list(whole.shape)
            shape[self.dimension] = n_padding
            whole = torch.cat([whole, whole.new_zeros(shape)], self.dimension)
        before, behind = whole.shape[: self.dimension], whole.shape[self.dimension + 1 :]
        blocks = whole.view(*before, self.n_blocks, self.n_shards, -1, *behind)
        part = blocks.select(self.dimension + 1, self.shard)
        return part.flatten(self.dimension, self.dimension + 1)


WHOLE = Split(dimension=0, n_blocks=1, shard=0, n_shards=1)


def splits_of(module: nn.Module) -> dict[str, Split]:
    """Splits of the weights of a module and its submodules, by name; uncut weights are left out.

    A module that holds shards has an attribute `splits`, by the names of its own weights.
    """
    return {
        f"{path}.{name}" if path else name: split
        for path, inner in module.named_modules()
        for name, split in getattr(inner, "splits", {}).items()
    }
