"""One layer of a decoder-only transformer, whatever its attention and feed-forward are."""

from functools import partial
from typing import assert_never

from torch import Tensor, nn

from dynapipe_hpc.data.microbatch import Recompute
from dynapipe_hpc.models.attention_context import WHOLE_ROWS, AttentionContext
from dynapipe_hpc.models.recompute import recomputed
from dynapipe_hpc.models.sharding.residual_stream import ResidualStream


class TransformerLayer(nn.Module):
    """Attention and feed-forward, each normalised at its entrance and added to the stream.

    Args:
        attention_norm: Norm before attention; like the other norm it maps (..., width).
        attention: Maps a tensor of the stream to another one, given stream and `AttentionContext`.
        feed_forward_norm: Norm before feed-forward.
        feed_forward: Maps a tensor of the stream to another one, given the stream.
    """

    def __init__(
        self,
        *,
        attention_norm: nn.Module,
        attention: nn.Module,
        feed_forward_norm: nn.Module,
        feed_forward: nn.Module,
    ) -> None:
        super().__init__()
        self.attention_norm = attention_norm
        self.attention = attention
        self.feed_forward_norm = feed_forward_norm
        self.feed_forward = feed_forward

    def forward(
        self,
        hidden: Tensor,
        stream: ResidualStream,
        recompute: Recompute = Recompute.NONE,
        context: AttentionContext = WHOLE_ROWS,
    ) -> Tensor:
        """Maps a tensor of the stream to another one.

        Backward recomputes the layer from its input (full), or its attention, projections
        and norm included (selective): where attention is fused, nothing that grows with the
        square of a row's tokens is kept anyway, and what is kept are the projections.
        """
        match recompute:
            case Recompute.NONE:
                return self._whole(stream, context, hidden)
            case Recompute.SELECTIVE:
                attended = recomputed(partial(self._attended, stream, context), hidden)
                return self._fed_forward(stream, hidden + attended)
            case Recompute.FULL:
                return recomputed(partial(self._whole, stream, context), hidden)
            case _:
                assert_never(recompute)

    def _whole(self, stream: ResidualStream, context: AttentionContext, hidden: Tensor) -> Tensor:
        return self._fed_forward(stream, hidden + self._attended(stream, context, hidden))

    def _attended(
        self, stream: ResidualStream, context: AttentionContext, hidden: Tensor
    ) -> Tensor:
        attended: Tensor = self.attention(self.attention_norm(hidden), stream, context)
        return attended

    def _fed_forward(self, stream: ResidualStream, hidden: Tensor) -> Tensor:
        output: Tensor = hidden + self.feed_forward(self.feed_forward_norm(hidden), stream)
        return output
