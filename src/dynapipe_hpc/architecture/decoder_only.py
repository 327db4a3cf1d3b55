"""Base of families of decoder-only models."""

from collections.abc import Mapping
from dataclasses import dataclass

from dynapipe_hpc.architecture.boundary import Boundary
from dynapipe_hpc.architecture.part import EMBEDDING, HEAD, LAYER
from dynapipe_hpc.architecture.sizes import Sizes

VECTORS = "embedding.tokens.weight"
NORM_EPSILON = 1e-5


@dataclass(frozen=True, slots=True)
class DecoderOnly:
    """The part of an `Architecture` that is the same in all decoder-only models.

    The head has weights of its own unless it is tied, as in GPT-2; then the first and the last
    stage exchange their gradients.
    """

    sizes: Sizes

    has_target_rows = False

    @property
    def layer_counts(self) -> Mapping[str, int]:
        """Number of layers, which are of one kind."""
        return {LAYER: self.sizes.n_layers}

    @property
    def norm_epsilon(self) -> float:
        """Number that norms add to a variance or mean square; by default that of GPT-2."""
        return self.sizes.norm_epsilon or NORM_EPSILON

    @property
    def tied_head(self) -> bool:
        """Whether logits have the embedding's weights; by default not."""
        return bool(self.sizes.tied_head)

    @property
    def tied(self) -> Mapping[str, tuple[str, ...]]:
        """The vectors of tokens, if the head uses them."""
        return {VECTORS: (EMBEDDING, HEAD)} if self.tied_head else {}

    def held(self, layers: range, *, first: bool, last: bool) -> Mapping[str, int]:
        """Numbers of parts: layers, the embedding on the first stage, the head on the last."""
        return {LAYER: len(layers), EMBEDDING: int(first), HEAD: int(last)}

    def boundary(self, layers: range) -> Boundary:  # noqa: ARG002 - the same from every stage
        """`Boundary.ROWS`: the activation of the rows."""
        return Boundary.ROWS
