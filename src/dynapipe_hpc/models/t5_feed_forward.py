"""Feed-forward blocks of a T5: with a ReLU, as in T5 1.0, or with a gated GELU, as in T5 1.1."""

from functools import partial

from torch import Tensor, nn
from torch.nn import functional

from dynapipe_hpc.architecture.model_shape import ModelShape
from dynapipe_hpc.architecture.t5 import T5Shape
from dynapipe_hpc.models.deferred_weights import deferring
from dynapipe_hpc.models.dropout import Dropout
from dynapipe_hpc.models.gated_feed_forward import GatedFeedForward
from dynapipe_hpc.models.sharding.residual_stream import ResidualStream
from dynapipe_hpc.models.sharding.sharded_linear import ColumnLinear, RowLinear
from dynapipe_hpc.models.sharding.shards import Shards


class ReluFeedForward(nn.Module):
    """Feed-forward block: two linear maps with a ReLU between; shards divide the inner width."""

    def __init__(self, shape: ModelShape, shards: Shards) -> None:
        super().__init__()
        self.inner = ColumnLinear(shape.hidden_size, shape.ffn_size, shards, bias=False)
        self.output = RowLinear(shape.ffn_size, shape.hidden_size, shards, bias=False)
        self.dropout = Dropout()
        self._first_column = shards.shard * (shape.ffn_size // shards.n_shards)

    def forward(self, hidden: Tensor, stream: ResidualStream) -> Tensor:
        """Maps a tensor of the stream to another one."""
        (inner,) = stream.map(hidden, self.inner)
        # What the function drops is zero before it, too, so that nothing more is kept.
        inner = self.dropout(inner, stream.keys, self._first_column)
        # A ReLU keeps only its output. Beside it, the gradient that `inner` defers would be more
        # than the forward pass has kept, so the output's weights do not wait.
        with deferring(None):
            output: Tensor = self.output(functional.relu(inner), stream)
        return output


def feed_forward_of(shape: T5Shape, shards: Shards) -> ReluFeedForward | GatedFeedForward:
    """The feed-forward block of a model's layers."""
    if not shape.gated:
        return ReluFeedForward(shape, shards)
    return GatedFeedForward(shape, shards, partial(functional.gelu, approximate="tanh"))
