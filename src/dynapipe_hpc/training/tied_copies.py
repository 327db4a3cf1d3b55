"""Tied weights, of which several stages hold a copy."""

from collections.abc import Mapping
from typing import NamedTuple

from torch import Tensor, nn

from dynapipe_hpc.training.collectives import Collectives
from dynapipe_hpc.training.flat_parameters import FlatParameters

Tied = Mapping[str, tuple[int, ...]]  # by a weight's name, the stages that hold it, ascending
NOTHING_TIED: Tied = {}


class _Copy(NamedTuple):
    """This stage's copy of a tied weight and of its gradient, as flat views."""

    stages: tuple[int, ...]
    weight: Tensor
    gradient: Tensor


class TiedCopies:
    """Copies of tied weights; a tied weight belongs to the first stage that holds it.

    This way it is counted, clipped and updated once, and has one optimizer state. Gradients of
    copies are sent to the owner, and its new values are sent back.
    """

    def __init__(
        self, module: nn.Module, tied: Tied, own: FlatParameters, collectives: Collectives
    ) -> None:
        """Takes over the copies in `module`, whose other parameters are in `own`."""
        self._collectives = collectives
        left_out = set(dict(module.named_parameters())) - set(borrowed(tied, collectives.stage))
        held = dict(module.named_parameters())
        copies = None if left_out == held.keys() else FlatParameters(module, left_out=left_out)
        gradient_of = own.gradient_of | ({} if copies is None else copies.gradient_of)
        self._flat = copies
        self._tied = [
            _Copy(stages, held[name].data.view(-1), gradient_of[held[name]].view(-1))
            for name, stages in tied.items()
            if collectives.stage in stages
        ]

    @property
    def kept_bytes(self) -> int:
        """Size of the copies and their gradients on this rank, in bytes."""
        flat = self._flat
        return 0 if flat is None else flat.weights.nbytes + flat.gradients.nbytes

    def collect_gradients(self) -> None:
        """Sums the gradients of all copies on the owner."""
        for tied in self._tied:
            self._collectives.sum_over_copies(tied.gradient, tied.stages)

    def spread_weights(self) -> None:
        """Copies the owner's weights, bit by bit, to all stages that hold copies."""
        for tied in self._tied:
            self._collectives.copy_from_first(tied.weight, tied.stages)

    def clear_gradients(self) -> None:
        """Sets the gradients of copies to zero."""
        if self._flat is not None:
            self._flat.gradients.zero_()


def borrowed(tied: Tied, stage: int) -> list[str]:
    """Names of the weights of which a stage holds a copy but which belong to another stage."""
    return [name for name, stages in tied.items() if stage in stages[1:]]
