"""What a family of models says about itself."""

from collections.abc import Mapping
from typing import Protocol

from dynapipe_hpc.architecture.boundary import Boundary
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

    @property
    def has_target_rows(self) -> bool:
        """Whether targets have rows of their own, beside those of inputs."""
        ...

    @property
    def tied(self) -> Mapping[str, tuple[str, ...]]:
        """Kinds of parts that use a weight, by its name, where several stages may hold a copy.

        The first kind has no other parameters.
        """
        ...

    @property
    def fingerprint(self) -> tuple[str, ...]:
        """Names of the sizes that costs of a part depend on; the number of layers is not one."""
        ...

    @property
    def divisible_by_shards(self) -> tuple[str, ...]:
        """Names of the sizes of which every shard takes an equal part."""
        ...

    def check(self) -> None:
        """Refuses sizes that do not go together.

        Raises:
            ValueError: Names them and their values.
        """
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

    def boundary(self, layers: range) -> Boundary:
        """What a stage with these layers hands to the next one."""
        ...
