"""Tied weights, of which several stages hold a copy."""

from collections.abc import Mapping
from itertools import accumulate
from typing import NamedTuple

from torch import Tensor, nn

from dynapipe_hpc.architecture.model_shape import ModelShape
from dynapipe_hpc.architecture.part import EMBEDDING
from dynapipe_hpc.architecture.placement import Placement
from dynapipe_hpc.training.collectives import Collectives
from dynapipe_hpc.training.flat_parameters import FlatParameters


class TiedWeight(NamedTuple):
    """A weight of which several stages hold a copy."""

    stages: tuple[int, ...]  # stages that hold the weight, ascending
    n_numbers: int
    in_pairs: bool  # as the embedding, which is large; small ones are summed over a replica


Tied = Mapping[str, TiedWeight]
"""Tied weights by name."""


def tied_weights(shape: ModelShape, placement: Placement, n_shards: int) -> Tied:
    """The weights that are on more than one stage; empty if these are frozen."""
    if shape.lora:
        return {}
    held, weights = placement.parts(shape), shape.weights(n_shards)
    tied = {
        name: TiedWeight(
            stages=tuple(s for s, held_by in enumerate(held) if any(held_by[k] for k in kinds)),
            n_numbers=weights[kinds[0]].n_first,
            in_pairs=EMBEDDING in kinds,
        )
        for name, kinds in shape.tied.items()
    }
    return {name: weight for name, weight in tied.items() if len(weight.stages) > 1}


def paired_stages(tied: Tied) -> tuple[tuple[int, ...], ...]:
    return tuple(weight.stages for weight in tied.values() if weight.in_pairs)


NOTHING_TIED: Tied = {}


class _Copy(NamedTuple):
    """This stage's copy of a tied weight and of its gradient, as flat views."""

    stages: tuple[int, ...]
    weight: Tensor
    gradient: Tensor


class TiedCopies:
    """Copies of tied weights; a tied weight belongs to the first stage that holds it.

    So it is counted, clipped and updated once. Gradients of copies are sent to the owner, which
    sends back new values: in pairs of stages, or with one all-reduce for all small weights of a
    replica.
    """

    def __init__(
        self,
        module: nn.Module,
        tied: Tied,
        own_parameters: FlatParameters,
        collectives: Collectives,
    ) -> None:
        """Takes over the copies in `module`, whose other parameters are in `own_parameters`."""
        self._collectives = collectives
        held = dict(module.named_parameters())
        left_out = set(held) - set(borrowed(tied, collectives.stage))
        copies = None if left_out == held.keys() else FlatParameters(module, left_out=left_out)
        gradient_of = own_parameters.gradient_of | ({} if copies is None else copies.gradient_of)
        self._flat = copies
        copies_by_name = {
            name: _Copy(weight.stages, held[name].data.view(-1), gradient_of[held[name]].view(-1))
            for name, weight in tied.items()
            if collectives.stage in weight.stages
        }
        self._pairs = [copy for name, copy in copies_by_name.items() if tied[name].in_pairs]
        small = {name: weight.n_numbers for name, weight in tied.items() if not weight.in_pairs}
        self._small = (
            _SmallCopies(small, copies_by_name, own_parameters, collectives) if small else None
        )

    @property
    def kept_bytes(self) -> int:
        """Size of the copies and their gradients on this rank, in bytes."""
        flat = self._flat
        return 0 if flat is None else flat.weights.nbytes + flat.gradients.nbytes

    def collect_gradients(self) -> None:
        """Sums the gradients of all copies on the owner."""
        if self._small:
            self._small.collect_gradients()
        for copy in self._pairs:
            self._collectives.sum_over_copies(copy.gradient, copy.stages)

    def spread_weights(self) -> None:
        """Copies the owner's weights, bit by bit, to all stages that hold copies."""
        if self._small:
            self._small.spread_weights()
        for copy in self._pairs:
            self._collectives.copy_from_first(copy.weight, copy.stages)

    def clear_gradients(self) -> None:
        """Sets the gradients of copies to zero."""
        if self._flat is not None:
            self._flat.gradients.zero_()


class _SmallCopies:
    """Copies of small tied weights, in one buffer that all ranks of a replica sum."""

    def __init__(
        self,
        n_numbers: Mapping[str, int],
        copies_by_name: Mapping[str, _Copy],
        own_parameters: FlatParameters,
        collectives: Collectives,
    ) -> None:
        self._collectives = collectives
        n_shards, n_all = collectives.n_shards, sum(n_numbers.values())
        self._buffer = own_parameters.gradients.new_zeros(n_shards, n_all)
        mine, ends = self._buffer[collectives.shard], accumulate(n_numbers.values())
        self._held = [
            (mine[end - n : end], copies_by_name[name])
            for (name, n), end in zip(n_numbers.items(), ends, strict=True)
            if name in copies_by_name
        ]

    def collect_gradients(self) -> None:
        """Sums the gradients of all copies on the owner."""
        self._buffer.zero_()
        for room, copy in self._held:
            room.copy_(copy.gradient)
        self._collectives.sum_within_replica(self._buffer.view(-1))
        for room, copy in self._held:
            if self._owns(copy):
                copy.gradient.copy_(room)

    def spread_weights(self) -> None:
        self._buffer.zero_()
        for room, copy in self._held:
            if self._owns(copy):
                room.copy_(copy.weight)
        self._collectives.sum_within_replica(self._buffer.view(-1))
        for room, copy in self._held:
            if not self._owns(copy):
                copy.weight.copy_(room)

    def _owns(self, copy: _Copy) -> bool:
        return self._collectives.stage == copy.stages[0]


def borrowed(tied: Tied, stage: int) -> list[str]:
    """Names of weights of which a stage holds a copy while another stage owns them."""
    return [name for name, weight in tied.items() if stage in weight.stages[1:]]
