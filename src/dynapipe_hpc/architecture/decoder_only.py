"""Base of families of decoder-only models."""

from abc import ABC
from collections.abc import Mapping

from dynapipe_hpc.architecture.model_shape import ModelShape
from dynapipe_hpc.architecture.part import EMBEDDING, HEAD, LAYER, Boundary

VECTORS = "embedding.tokens.weight"


class DecoderOnly(ModelShape, ABC):
    """The part of a `ModelShape` that is the same in all decoder-only models.

    The head has weights of its own unless it is tied, as in GPT-2; then the first and the last
    stage exchange their gradients.
    """

    @property
    def layer_counts(self) -> Mapping[str, int]:
        """Number of layers, which are of one kind."""
        return {LAYER: self.n_layers}

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
