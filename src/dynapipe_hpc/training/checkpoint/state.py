"""The state of training on one rank: taken down while training goes on, or put back."""

import torch
from torch import nn

from dynapipe_hpc.training.checkpoint.parts import Part, parts_of, placements
from dynapipe_hpc.training.collectives import Collectives
from dynapipe_hpc.training.counters import Counters
from dynapipe_hpc.training.optimizer import Optimizer
from dynapipe_hpc.training.optimizer_state import FlatState, Segment


class TrainingState:
    """What a rank contributes to a checkpoint and takes from one.

    Replicas hold the same weights, so each contributes the share that it would have if they
    shared out the optimizer's state, whether they do or not; of weights that all shards hold,
    the first contributes. All together they contribute every number once.
    """

    def __init__(self, module: nn.Module, optimizer: Optimizer, collectives: Collectives) -> None:
        """Looks after what `optimizer` updates of `module`."""
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
        """What all ranks hold alike."""
        return self._optimizer.counters

    @property
    def n_bytes(self) -> int:
        """What this rank contributes."""
        parts = parts_of(self._contributed, self._contribution())
        return sum(part.values.nbytes for part in parts)

    def snapshot(self) -> list[Part]:
        """A copy of this rank's contribution, in the memory of the host.

        The next snapshot is put into the same memory.
        """
        own = self._contribution()
        if not self._parts:
            self._copies = {
                kind: [Segment(s.start, _like(s.values)) for s in segments]
                for kind, segments in own.items()
            }
            self._parts = parts_of(self._contributed, self._copies)
        for kind, segments in own.items():
            for segment, copy in zip(segments, self._copies[kind], strict=True):
                copy.values.copy_(segment.values)
        return self._parts

    def to_restore(self) -> list[Part]:
        """All that this rank holds, to be overwritten."""
        return parts_of(self._placements, self._optimizer.state())

    def resume(self, counters: Counters) -> None:
        """Goes on from what `to_restore` was overwritten with; all ranks together."""
        self._optimizer.resume(counters)

    def _contribution(self) -> FlatState:
        return {
            kind: [own for segment in segments if (own := _within(segment, self._share))]
            for kind, segments in self._optimizer.state().items()
        }


def _within(segment: Segment, share: range) -> Segment | None:
    """The part of a segment that belongs to a share."""
    start = max(segment.start, share.start)
    stop = min(segment.start + len(segment.values), share.stop)
    if start >= stop:
        return None
    return Segment(start, segment.values[start - segment.start : stop - segment.start])


def _like(values: torch.Tensor) -> torch.Tensor:
    return torch.empty_like(values, device="cpu", pin_memory=values.is_cuda)
