"""Feed-forward block with a gate, as in Llama and T5 1.1."""

from collections.abc import Callable
from functools import partial

from torch import Tensor, nn

from dynapipe_hpc.architecture.model_shape import ModelShape
from dynapipe_hpc.models.dropout import Dropout
from dynapipe_hpc.models.recompute import recomputed
from dynapipe_hpc.models.sharding.residual_stream import ResidualStream
from dynapipe_hpc.models.sharding.sharded_linear import ColumnLinear, RowLinear
from dynapipe_hpc.models.sharding.shards import Shards


class GatedFeedForward(nn.Module):
    """Feed-forward block: a function of one map times another map, and a map back.

    The weight of `inner` has the outputs of the map that the function takes (the gate), then those
    of the other one. Backward computes the function again, and keeps its input and the product.

    Source:
        Shazeer, "GLU Variants Improve Transformer", arXiv:2002.05202, section 2.
    """

    def __init__(
        self, shape: ModelShape, shards: Shards, function: Callable[[Tensor], Tensor]
    ) -> None:
        super().__init__()
        width, inner = shape.hidden_size, shape.ffn_size
        self.inner = ColumnLinear(width, 2 * inner, shards, n_blocks=2, bias=False)
        self.output = RowLinear(inner, width, shards, bias=False)
        self.dropout = Dropout()
        self._function = function
        self._first_column = shards.shard * (inner // shards.n_shards)

    def forward(self, hidden: Tensor, stream: ResidualStream) -> Tensor:
        """Maps a tensor of the stream to another one."""
        (both,) = stream.map(hidden, self.inner)
        output: Tensor = self.output(recomputed(partial(self._gated, stream), both), stream)
        return output

    def _gated(self, stream: ResidualStream, both: Tensor) -> Tensor:
        gate, values = both.chunk(2, -1)
        product = self._function(gate) * values
        dropped: Tensor = self.dropout(product, stream.keys, self._first_column)
        return dropped
