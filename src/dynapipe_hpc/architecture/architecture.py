"""Architecture of a family of models: facts that need no torch."""

from collections.abc import Mapping
from typing import Protocol

from dynapipe_hpc.architecture.boundary import Boundary
from dynapipe_hpc.architecture.part import Part
from dynapipe_hpc.architecture.sizes import Sizes


class Architecture(Protocol):
    """Architecture of a model: a family and sizes; `FAMILIES` lists the families.

    Contract: the numbers of parameters, operations and kept bytes are those of the torch modules
    of the family in `models`.
    """

    def __init__(self, sizes: Sizes) -> None:
        """Takes the sizes of a model."""
        ...

    @property
    def layer_kinds(self) -> tuple[str, ...]:
        """Kinds of layers, in the order in which rows pass them; there are `n_layers` of each."""
        ...

    @property
    def has_target_rows(self) -> bool:
        """Whether targets have rows of their own, separate from those of inputs."""
        ...

    @property
    def tied(self) -> Mapping[str, tuple[str, ...]]:
        """Tied weights, of which several stages may hold a copy: kinds of parts that use each.

        The keys are the names of the weights. The first kind has no other parameters.
        """
        ...

    @property
    def fingerprint(self) -> tuple[str, ...]:
        """Names of the sizes on which costs of a part depend; the number of layers is not one."""
        ...

    @property
    def divisible_by_shards(self) -> tuple[str, ...]:
        """Names of the sizes that tensor-parallel shards divide equally."""
        ...

    def check(self) -> None:
        """Refuses sizes that contradict each other.

        Raises:
            ValueError: Sizes contradict each other; names them and their values.
        """
        ...

    def parts(self, n_shards: int = 1, n_stream_shards: int = 1) -> Mapping[str, Part]:
        """Parts of the model by kind, each as one tensor-parallel shard holds it.

        Args:
            n_shards: Shards over which weights are cut.
            n_stream_shards: Shards over which the residual stream is spread: all or one.
        """
        ...

    def held(self, layers: range, *, first: bool, last: bool) -> Mapping[str, int]:
        """Number of parts of each kind on a pipeline stage.

        Args:
            layers: Indices of the layers on the stage, counted over all kinds.
            first: Whether it is the first stage.
            last: Whether it is the last stage.
        """
        ...

    def boundary(self, layers: range) -> Boundary:
        """Boundary between a stage that holds these layers and the next one."""
        ...
