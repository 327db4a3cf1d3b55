"""Llama as torch modules: the layers of one pipeline stage."""

import torch
from torch import Tensor, nn

from dynapipe_hpc.architecture.llama import LlamaShape
from dynapipe_hpc.architecture.model_shape import ModelShape
from dynapipe_hpc.models.decoder import DecoderStage
from dynapipe_hpc.models.llama_layers import layer_of, norm_of
from dynapipe_hpc.models.places import Places
from dynapipe_hpc.models.rotary import Angles
from dynapipe_hpc.models.sharding.shards import Shards
from dynapipe_hpc.models.tokens.documents import Documents
from dynapipe_hpc.models.transformer import TransformerLayer


class LlamaStage(DecoderStage):
    """Pipeline stage of a Llama, whose layers turn queries and keys by their positions."""

    def layer_of(self, shape: ModelShape, shards: Shards) -> TransformerLayer:
        """A layer of a Llama."""
        assert isinstance(shape, LlamaShape)  # noqa: S101 - types
        return layer_of(shape, shards)

    def norm_of(self, shape: ModelShape) -> nn.RMSNorm:
        """RMS norm."""
        return norm_of(shape)

    def n_positions(self, _: ModelShape) -> int:
        """Zero: rotary positions need no table."""
        return 0

    def places_of(
        self, hidden: Tensor, size: tuple[int, int], documents: Documents | None
    ) -> Places:
        """The documents, and angles of positions in documents or rows."""
        in_rows = torch.arange(size[1], device=hidden.device)
        positions = in_rows if documents is None else documents.positions
        assert isinstance(self._shape, LlamaShape)  # noqa: S101 - types
        return Places(documents, Angles.from_positions(self._shape, positions, hidden.dtype))


STAGE = LlamaStage
