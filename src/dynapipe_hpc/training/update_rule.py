"""Rules by which an optimizer updates weights, and the state that they keep."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from torch import Tensor

from dynapipe_hpc.training.flat_parameters import FlatView


@dataclass(frozen=True, slots=True)
class Segment:
    """Numbers that belong to consecutive weights in `FlatParameters`.

    Attributes:
        start: Index of the first of those weights.
        values: Numbers, shape (n,), not a copy.
    """

    start: int
    values: Tensor


FlatState = Mapping[str, Segment]
"""State by kind, with a number per weight."""


@dataclass(frozen=True, slots=True)
class Factor:
    """State of a weight that is smaller than the weight.

    Attributes:
        view: Location in the state of the unsplit weight; it starts at 0.
        values: Numbers, shape (n,), not a copy.
    """

    kind: str
    view: FlatView
    values: Tensor


class UpdateRule(Protocol):
    """A rule that updates weights by their gradients, such as AdamW.

    Contract: with the same state, number of updates and gradients, an update gives the same bits.
    A skipped update changes nothing. The rule waits for no device.
    """

    @property
    def n_updates(self) -> int:
        """Number of updates so far, without skipped ones; the host waits for the device."""
        ...

    @n_updates.setter
    def n_updates(self, value: int) -> None: ...

    @property
    def tensors(self) -> Sequence[Tensor]:
        """Weights and state."""
        ...

    def state(self, first: int) -> FlatState:
        """Weights and state that has a number per weight."""
        ...

    def factors(self) -> Sequence[Factor]:
        """State that is smaller than the weights."""
        ...

    def update(self, learning_rate: float, skips: Tensor) -> None:
        """Updates weights and state.

        Args:
            learning_rate: Learning rate.
            skips: 1.0 if the update is skipped, else 0.0: a scalar on the device.
        """
        ...
