"""One layer of a decoder-only transformer."""

from functools import partial
from typing import assert_never

from torch import Tensor, nn
from torch.nn import functional

from dynapipe_hpc.data.microbatch import Recompute
from dynapipe_hpc.models.attention import causal_attention
from dynapipe_hpc.models.recompute import recomputed
from dynapipe_hpc.models.sharding.residual_stream import ResidualStream
from dynapipe_hpc.models.sharding.sharded_linear import ColumnLinear, RowLinear
from dynapipe_hpc.models.sharding.shards import Shards
from dynapipe_hpc.models.tokens.documents import Documents
from dynapipe_hpc.plan.model_shape import ModelShape


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

    def forward(
        self, hidden: Tensor, stream: ResidualStream, documents: Documents | None = None
    ) -> Tensor:
        """Maps a tensor of the stream to another one."""
        (projected,) = stream.map(hidden, self.query_key_value)
        rows, tokens, _ = projected.shape
        projected = projected.view(rows, tokens, 3, self.n_heads, -1)
        query, key, value = projected.permute(2, 0, 3, 1, 4)  # each (rows, heads, tokens, d)
        mixed = causal_attention(query, key, value, documents)
        output: Tensor = self.output(mixed.transpose(1, 2).flatten(2), stream)
        return output


class FeedForward(nn.Module):
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


class TransformerLayer(nn.Module):
    """Attention and feed-forward, each normalised at its entrance and added to the stream."""

    def __init__(self, shape: ModelShape, shards: Shards) -> None:
        super().__init__()
        self.attention_norm = nn.LayerNorm(shape.hidden_size)
        self.attention = CausalAttention(shape, shards)
        self.feed_forward_norm = nn.LayerNorm(shape.hidden_size)
        self.feed_forward = FeedForward(shape, shards)

    def forward(
        self,
        hidden: Tensor,
        stream: ResidualStream,
        recompute: Recompute = Recompute.NONE,
        documents: Documents | None = None,
    ) -> Tensor:
        """Maps a tensor of the stream to another one; `documents` are those of a packed row.

        Backward recomputes the layer from its input (full), or its attention, projections
        and norm included (selective): where attention is fused, nothing that grows with the
        square of a row's tokens is kept anyway, and what is kept are the projections.
        """
        match recompute:
            case Recompute.NONE:
                return self._whole(stream, documents, hidden)
            case Recompute.SELECTIVE:
                attended = recomputed(partial(self._attended, stream, documents), hidden)
                return self._fed_forward(stream, hidden + attended)
            case Recompute.FULL:
                return recomputed(partial(self._whole, stream, documents), hidden)
            case _:
                assert_never(recompute)

    def _whole(self, stream: ResidualStream, documents: Documents | None, hidden: Tensor) -> Tensor:
        return self._fed_forward(stream, hidden + self._attended(stream, documents, hidden))

    def _attended(
        self, stream: ResidualStream, documents: Documents | None, hidden: Tensor
    ) -> Tensor:
        attended: Tensor = self.attention(self.attention_norm(hidden), stream, documents)
        return attended

    def _fed_forward(self, stream: ResidualStream, hidden: Tensor) -> Tensor:
        output: Tensor = hidden + self.feed_forward(self.feed_forward_norm(hidden), stream)
        return output
