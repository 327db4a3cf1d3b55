"""Architecture of a family of models: facts that need no torch."""

from collections.abc import Mapping
from typing import ClassVar, Protocol

from dynapipe_hpc.architecture.boundary import Boundary
from dynapipe_hpc.architecture.part import Part
from dynapipe_hpc.architecture.sizes import Sizes


class Architecture(Protocol):
    """Architecture of a model: a family and sizes; `FAMILIES` lists the families.

    Contract: the numbers of parameters, operations and kept bytes are those of the torch modules
    of the family in `models`.

    Attributes:
        options: Names of the optional keys of the [model] table that the family takes.
    """

    options: ClassVar[tuple[str, ...]]

    def __init__(self, sizes: Sizes) -> None:
        """Takes the sizes of a model."""
        ...

    @property
    def layer_counts(self) -> Mapping[str, int]:
        """Number of layers of each kind, in the order in which rows pass the kinds."""
        ...

    @property
    def has_target_rows(self) -> bool:
        """Whether targets have rows of their own, separate from those of inputs."""
        ...

    @property
    def norm_epsilon(self) -> float:
        """Number that norms add to a variance or mean square."""
        ...

    @property
    def tied_head(self) -> bool:
        """Whether logits have the embedding's weights."""
        ...

    @property
    def tied(self) -> Mapping[str, tuple[str, ...]]:
        """Tied weights, of which several stages may hold a copy: kinds of parts that use each.

        The keys are the names of the weights. The first block of the first kind is the weight.
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

    @property
    def linear_layers(self) -> Mapping[str, tuple[str, ...]]:
        """Linear layers that may have adapters: what they compute, by how their names end.

        What has an adapter of its own, as in other implementations of the family, is named apart;
        these are equal blocks of outputs.
        """
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
