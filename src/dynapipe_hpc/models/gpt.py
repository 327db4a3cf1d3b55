"""GPT as torch modules: norms, attention, feed-forward, and the layers of one pipeline stage."""

from torch import Tensor, nn
from torch.nn import functional

from dynapipe_hpc.architecture.model_shape import ModelShape
from dynapipe_hpc.models.attention_context import AttentionContext
from dynapipe_hpc.models.decoder import DecoderStage
from dynapipe_hpc.models.sharding.residual_stream import ResidualStream
from dynapipe_hpc.models.sharding.sharded_linear import ColumnLinear, RowLinear
from dynapipe_hpc.models.sharding.shards import Shards
from dynapipe_hpc.models.transformer import TransformerLayer


class CausalAttention(nn.Module):
    """Self-attention in which a position sees itself and those before it in its row or document.

    Every shard has its own heads.
    """

    def __init__(self, shape: ModelShape, shards: Shards) -> None:
        super().__init__()
        width = shape.hidden_size
        self.n_heads = shape.n_heads // shards.n_shards
        self.query_key_value = ColumnLinear(width, 3 * width, shards, n_blocks=3)
        self.output = RowLinear(width, width, shards)

    def forward(self, hidden: Tensor, stream: ResidualStream, context: AttentionContext) -> Tensor:
        """Maps a tensor of the stream to another one."""
        (projected,) = stream.map(hidden, self.query_key_value)
        rows, tokens, _ = projected.shape
        projected = projected.view(rows, tokens, 3, self.n_heads, -1)
        query, key, value = projected.unbind(2)  # each (rows, tokens, heads, d)
        output: Tensor = self.output(context.attend(query, key, value), stream)
        return output


class GeluFeedForward(nn.Module):
    """Two linear maps with a GELU between them; every shard has its part of the inner width."""

    def __init__(self, shape: ModelShape, shards: Shards) -> None:
        super().__init__()
        self.inner = ColumnLinear(shape.hidden_size, shape.ffn_size, shards)
        self.output = RowLinear(shape.ffn_size, shape.hidden_size, shards)

    def forward(self, hidden: Tensor, stream: ResidualStream) -> Tensor:
        """Maps a tensor of the stream to another one."""
        (inner,) = stream.map(hidden, self.inner)
        output: Tensor = self.output(functional.gelu(inner, approximate="tanh"), stream)
        return output


class GptStage(DecoderStage):
    """Pipeline stage of a GPT, whose embedding has a table of positions."""

    @staticmethod
    def norm_of(shape: ModelShape) -> nn.LayerNorm:
        """Layer norm over the width, with learned scales and shifts."""
        return nn.LayerNorm(shape.hidden_size, eps=shape.norm_epsilon)

    @staticmethod
    def n_positions(shape: ModelShape) -> int:
        """Number of tokens that a row may have."""
        return shape.max_tokens

    @staticmethod
    def layer_of(shape: ModelShape, shards: Shards) -> TransformerLayer:
        """A layer of a GPT."""
        return TransformerLayer(
            attention_norm=GptStage.norm_of(shape),
            attention=CausalAttention(shape, shards),
            feed_forward_norm=GptStage.norm_of(shape),
            feed_forward=GeluFeedForward(shape, shards),
        )


STAGE = GptStage
