"""What a family of models says about itself."""

from collections.abc import Mapping
from typing import Protocol

from dynapipe_hpc.architecture.part import Part
from dynapipe_hpc.architecture.sizes import Sizes


class Architecture(Protocol):
    """A family of models, with the sizes of one of them; see `FAMILIES`.

    Contract: what it says of parameters, operations and kept bytes is what the torch modules of
    the family in `models` hold, run and keep.
    """

    def __init__(self, sizes: Sizes) -> None:
        """Takes the sizes of a model."""
        ...

    @property
    def layer_kinds(self) -> tuple[str, ...]:
        """Kinds of layers in the order in which rows pass them; `n_layers` of each."""
        ...

    def parts(self, n_shards: int = 1) -> Mapping[str, Part]:
        """Parts of the model by kind, each as one shard holds it."""
        ...

    def held(self, layers: range, *, first: bool, last: bool) -> Mapping[str, int]:
        """Parts of every kind that a pipeline stage holds.

        Args:
            layers: Indices of its layers, over all kinds.
            first: Whether rows enter the model there.
            last: Whether it computes the loss.
        """
        ...
