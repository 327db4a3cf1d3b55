"""Llama as torch modules: the layers of one pipeline stage."""

from dataclasses import replace

import torch
from torch import Tensor, nn

from dynapipe_hpc.architecture.llama import LlamaShape
from dynapipe_hpc.architecture.model_shape import ModelShape
from dynapipe_hpc.models.attention_context import AttentionContext
from dynapipe_hpc.models.decoder import DecoderStage
from dynapipe_hpc.models.llama_layers import layer_of, norm_of
from dynapipe_hpc.models.rotary import Angles
from dynapipe_hpc.models.sharding.shards import Shards
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

    def layer_context(
        self, context: AttentionContext, n_tokens: int, hidden: Tensor
    ) -> AttentionContext:
        """The context with angles of positions in documents or rows."""
        assert isinstance(self._shape, LlamaShape)  # noqa: S101 - types
        positions = context.positions
        if positions is None:
            positions = torch.arange(n_tokens, device=hidden.device)
        angles = Angles.from_positions(self._shape, positions, hidden.dtype)
        return replace(context, angles=angles)


STAGE = LlamaStage
