"""GPT as torch modules: the layers of one pipeline stage."""

from torch import nn

from dynapipe_hpc.architecture.model_shape import ModelShape
from dynapipe_hpc.models.decoder import DecoderStage
from dynapipe_hpc.models.gpt_layers import layer_of, norm_of
from dynapipe_hpc.models.sharding.shards import Shards
from dynapipe_hpc.models.transformer import TransformerLayer


class GptStage(DecoderStage):
    """Pipeline stage of a GPT, whose embedding has a table of positions."""

    def layer_of(self, shape: ModelShape, shards: Shards) -> TransformerLayer:
        """A layer of a GPT."""
        return layer_of(shape, shards)

    def norm_of(self, shape: ModelShape) -> nn.LayerNorm:
        """Layer norm."""
        return norm_of(shape)

    def n_positions(self, shape: ModelShape) -> int:
        """Number of tokens that a row may have."""
        return shape.max_tokens


STAGE = GptStage
