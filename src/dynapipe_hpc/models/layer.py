"""Layer of a transformer: the attention and feed-forward blocks that a family chooses."""

from collections.abc import Callable
from functools import partial
from typing import Any, assert_never

from torch import Tensor, nn
from torch.nn import functional

from dynapipe_hpc.architecture.model_shape import ModelShape
from dynapipe_hpc.data.microbatch import Recompute
from dynapipe_hpc.models.deferred_weights import deferring
from dynapipe_hpc.models.dropout import Dropout
from dynapipe_hpc.models.recompute import recomputed
from dynapipe_hpc.models.sharding.sharded_linear import ColumnLinear, ResidualStream, RowLinear
from dynapipe_hpc.models.sharding.shards import Shards


class TransformerLayer(nn.Module):
    """Attention and feed-forward, each with a norm of its input, and added to the stream."""

    def __init__(
        self,
        *,
        attention_norm: nn.Module,
        attention: nn.Module,
        feed_forward_norm: nn.Module,
        feed_forward: nn.Module,
        **between: nn.Module,
    ) -> None:
        super().__init__()
        self.attention_norm = attention_norm
        self.attention = attention
        for name, module in between.items():
            self.add_module(name, module)
        self.feed_forward_norm = feed_forward_norm
        self.feed_forward = feed_forward

    def forward(
        self,
        hidden: Tensor,
        stream: ResidualStream,
        context: Any,
        recompute: Recompute = Recompute.NONE,
        *sources: Tensor,
    ) -> Tensor:
        """Maps a tensor of the residual stream to another one.

        `context`: Tokens that each token sees, as attention takes it; its `biases` are tensors
        that are added to scores and have gradients.

        Backward recomputes the layer from its input (full), or only its attention, projections
        and norm included (selective). Without recomputation, fused attention keeps only the
        projections, and nothing that grows with the square of a row's tokens.
        """
        match recompute:
            case Recompute.NONE:
                return self._whole(stream, context, hidden, *sources)
            case Recompute.SELECTIVE:
                attend = partial(self._attended, stream, context)
                attended = recomputed(attend, hidden, *sources, also_kept=context.biases)
                return self._fed_forward(stream, attended)
            case Recompute.FULL:
                run = partial(self._whole, stream, context)
                return recomputed(run, hidden, *sources, also_kept=context.biases)
            case _:
                assert_never(recompute)

    def _whole(
        self, stream: ResidualStream, context: Any, hidden: Tensor, *sources: Tensor
    ) -> Tensor:
        return self._fed_forward(stream, self._attended(stream, context, hidden, *sources))

    def _attended(
        self, stream: ResidualStream, context: Any, hidden: Tensor, *_sources: Tensor
    ) -> Tensor:
        output: Tensor = hidden + self.attention(self.attention_norm(hidden), stream, context)
        return output

    def _fed_forward(self, stream: ResidualStream, hidden: Tensor) -> Tensor:
        output: Tensor = hidden + self.feed_forward(self.feed_forward_norm(hidden), stream)
        return output


class FeedForward(nn.Module):
    """Two linear maps; every shard has its part of the inner width, of each of `n_blocks`."""

    n_blocks = 1

    def __init__(self, shape: ModelShape, shards: Shards, *, bias: bool = False) -> None:
        super().__init__()
        width, inner, n = shape.hidden_size, shape.ffn_size, self.n_blocks
        self.inner = ColumnLinear(width, n * inner, shards, n_blocks=n, bias=bias)
        self.output = RowLinear(inner, width, shards, bias=bias)
        self.dropout = Dropout()
        self._first_column = shards.shard * (inner // shards.n_shards)


class GeluFeedForward(FeedForward):
    """Two linear maps with a GELU between them."""

    def forward(self, hidden: Tensor, stream: ResidualStream) -> Tensor:
        (inner,) = stream.map(hidden, self.inner)
        output: Tensor = self.output(functional.gelu(inner, approximate="tanh"), stream)
        return output


class ReluFeedForward(FeedForward):
    """Two linear maps with a ReLU between them, and dropout."""

    def forward(self, hidden: Tensor, stream: ResidualStream) -> Tensor:
        (inner,) = stream.map(hidden, self.inner)
        # Before the ReLU, with the same result as after it, so that nothing more is kept.
        inner = self.dropout(inner, stream.keys, self._first_column)
        # A ReLU keeps only its output. If the output's weights waited, that and the gradient that
        # `inner` defers would be more than the forward pass has kept. So they do not wait.
        with deferring(None):
            output: Tensor = self.output(functional.relu(inner), stream)
        return output


class GatedFeedForward(FeedForward):
    """Two maps, a function of the first times the second, and a map back, with dropout.

    The weight of `inner` has the rows of the first map (the gate, to which the function applies),
    then the rows of the second. Backward recomputes the function; its input and the product are
    kept.

    Source: Shazeer, "GLU Variants Improve Transformer", arXiv:2002.05202, section 2.
    """

    n_blocks = 2

    def __init__(
        self,
        shape: ModelShape,
        shards: Shards,
        function: Callable[[Tensor], Tensor],
        *,
        bias: bool = False,
    ) -> None:
        super().__init__(shape, shards, bias=bias)
        self._function = function

    def forward(self, hidden: Tensor, stream: ResidualStream) -> Tensor:
        (both,) = stream.map(hidden, self.inner)
        output: Tensor = self.output(recomputed(partial(self._gated, stream), both), stream)
        return output

    def _gated(self, stream: ResidualStream, both: Tensor) -> Tensor:
        gate, values = both.chunk(2, -1)
        product = self._function(gate) * values
        dropped: Tensor = self.dropout(product, stream.keys, self._first_column)
        return dropped
