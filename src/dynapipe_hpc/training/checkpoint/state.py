"""Training state of one rank: copied while training continues, or restored."""

from typing import Any

import torch
from torch import nn

from dynapipe_hpc.training.checkpoint.parts import StatePart, parts_of, whole_parts
from dynapipe_hpc.training.collectives import Collectives
from dynapipe_hpc.training.counters import Counters
from dynapipe_hpc.training.flat_parameters import FlatState, Segment
from dynapipe_hpc.training.optimizer import Optimizer


class TrainingState:
    """Training state that a rank contributes to a checkpoint and restores from one.

    Replicas hold the same weights, so each contributes the share that it would have with ZeRO-1,
    whether it is used or not. What all shards hold is contributed by the first shard. All ranks
    together contribute every number once.
    """

    def __init__(self, module: nn.Module, optimizer: Optimizer, collectives: Collectives) -> None:
        """Manages the weights of `module` that `optimizer` updates, and their state."""
        self._optimizer = optimizer
        self._module = module
        self._views = optimizer.parameters.views
        self._own_views = [
            view for view in self._views if collectives.shard == 0 or view.split.n_shards > 1
        ]
        n = len(optimizer.parameters.weights) // collectives.n_replicas
        self._share = range(collectives.replica * n, (collectives.replica + 1) * n)
        self._copy: FlatState = {}
        self._parts: list[StatePart] = []

    @property
    def counters(self) -> Counters:
        """Counters of the optimizer, which are equal on all ranks."""
        return self._optimizer.counters

    @property
    def n_bytes(self) -> int:
        """Size of this rank's contribution in bytes."""
        parts = parts_of(self._own_views, self._contribution())
        return sum(part.values.nbytes for part in parts)

    def snapshot(self) -> list[StatePart]:
        """Copies this rank's contribution to host memory.

        The next snapshot overwrites this one.
        """
        contribution = self._contribution()
        if not self._parts:
            self._copy = _like(contribution)
            self._parts = parts_of(self._own_views, self._copy)
        for kind, segment in contribution.items():
            self._copy[kind].values.copy_(segment.values)
        return self._parts

    def to_restore(self) -> list[StatePart]:
        """All parts that this rank holds, to be overwritten."""
        return parts_of(self._views, self._optimizer.state())

    def frozen(self) -> list[StatePart]:
        """All parts of weights that are not trained; checkpoints have none of them."""
        return whole_parts(self._module, frozen_only=True)

    def resume(self, counters: Counters) -> None:
        """Resumes from what `to_restore` was overwritten with; called by all ranks together."""
        self._optimizer.resume(counters)

    def _contribution(self) -> FlatState:
        flat = self._optimizer.state()
        return {kind: _within(segment, self._share) for kind, segment in flat.items()}


def _within(segment: Segment, share: range) -> Segment:
    """The part of a segment that is a share; all of the share is in the segment."""
    start, stop = share.start - segment.start, share.stop - segment.start
    return Segment(share.start, segment.values[start:stop])


def _like(state: FlatState) -> FlatState:
    """Room on the host for a state."""
    return {kind: Segment(each.start, _room(each.values)) for kind, each in state.items()}


def _room(values: torch.Tensor) -> torch.Tensor:
    room = torch.empty_like(values, device="cpu")
    # A rank that trains nothing has an empty state, which cannot be registered.
    if values.is_cuda and room.nbytes:
        # Pinned as it is: torch's own pinned memory is a power of two, up to twice as much. It is
        # never freed, as every snapshot uses it.
        runtime: Any = torch.cuda.cudart()  # type: ignore[no-untyped-call]
        torch.cuda.check_error(runtime.cudaHostRegister(room.data_ptr(), room.nbytes, 0))
    return room
