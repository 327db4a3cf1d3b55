"""Training state of one rank: copied while training continues, or restored."""

import torch
from torch import nn

from dynapipe_hpc.training.adamw import FlatState, Segment
from dynapipe_hpc.training.checkpoint.parts import Part, parts_of, placements
from dynapipe_hpc.training.collectives import Collectives
from dynapipe_hpc.training.counters import Counters
from dynapipe_hpc.training.optimizer import Optimizer


class TrainingState:
    """Training state that a rank contributes to a checkpoint and restores from one.

    Replicas hold the same weights, so each contributes the share that it would have with ZeRO-1,
    whether it is used or not. Weights that all shards hold are contributed by the first shard. All
    ranks together contribute every number once.
    """

    def __init__(self, module: nn.Module, optimizer: Optimizer, collectives: Collectives) -> None:
        """Manages the weights of `module` that `optimizer` updates, and their state."""
        self._optimizer = optimizer
        self._placements = placements(module, optimizer.parameters)
        self._contributed = [
            weight
            for weight in self._placements
            if weight.split.n_shards > 1 or collectives.shard == 0
        ]
        n = len(optimizer.parameters.weights) // collectives.n_replicas
        self._share = range(collectives.replica * n, (collectives.replica + 1) * n)
        self._copies: FlatState = {}
        self._parts: list[Part] = []

    @property
    def counters(self) -> Counters:
        """Counters of the optimizer, which are equal on all ranks."""
        return self._optimizer.counters

    @property
    def n_bytes(self) -> int:
        """Size of this rank's contribution in bytes."""
        parts = parts_of(self._contributed, self._contribution())
        return sum(part.values.nbytes for part in parts)

    def snapshot(self) -> list[Part]:
        """Copies this rank's contribution to host memory.

        The next snapshot overwrites this one.
        """
        own = self._contribution()
        if not self._parts:
            self._copies = {
                kind: Segment(segment.start, _like(segment.values)) for kind, segment in own.items()
            }
            self._parts = parts_of(self._contributed, self._copies)
        for kind, segment in own.items():
            self._copies[kind].values.copy_(segment.values)
        return self._parts

    def to_restore(self) -> list[Part]:
        """All parts that this rank holds, to be overwritten."""
        return parts_of(self._placements, self._optimizer.state())

    def resume(self, counters: Counters) -> None:
        """Resumes from what `to_restore` was overwritten with; called by all ranks together."""
        self._optimizer.resume(counters)

    def _contribution(self) -> FlatState:
        return {
            kind: _within(segment, self._share) for kind, segment in self._optimizer.state().items()
        }


def _within(segment: Segment, share: range) -> Segment:
    """The part of a segment that is a share; all of the share is in the segment."""
    start, stop = share.start - segment.start, share.stop - segment.start
    return Segment(share.start, segment.values[start:stop])


def _like(values: torch.Tensor) -> torch.Tensor:
    return torch.empty_like(values, device="cpu", pin_memory=values.is_cuda)
