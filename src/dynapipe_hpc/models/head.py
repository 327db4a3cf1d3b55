"""Head of a model: logits and losses."""

from torch import Tensor, nn

from dynapipe_hpc.architecture.model_shape import ModelShape
from dynapipe_hpc.models.linear_cross_entropy import Vocabulary, linear_cross_entropy
from dynapipe_hpc.models.sharding.residual_stream import ResidualStream
from dynapipe_hpc.models.sharding.sharded_linear import ColumnLinear
from dynapipe_hpc.models.sharding.shards import Shards


class Head(nn.Module):
    """Logits, and their losses.

    Args:
        shape: The model; a tied head has no weights of its own.
        shards: The shards of the stage.
        norm: The final norm; None if what comes in is normalised.
        divisor: Number by which logits are divided.
    """

    def __init__(
        self,
        shape: ModelShape,
        shards: Shards,
        norm: nn.Module | None = None,
        divisor: float = 1.0,
    ) -> None:
        super().__init__()
        width, is_tied = shape.hidden_size, shape.tied_head
        self.norm = norm
        self.logits = None if is_tied else ColumnLinear(width, shape.vocab_size, shards, bias=False)
        self._vocabulary = Vocabulary(shape.vocab_size, shards)
        self._divisor = divisor

    def forward(
        self,
        hidden: Tensor,
        stream: ResidualStream,
        labels: Tensor,
        vectors: Tensor | None = None,
    ) -> Tensor:
        """Cross entropies of predictions, of the shape of `labels`; see `linear_cross_entropy`.

        Args:
            hidden: A tensor of the stream.
            stream: The stream of what is predicted.
            labels: Ids to predict, shape (rows, tokens).
            vectors: Vectors of the embedding; a tied head needs them.
        """
        normed = stream.gather(hidden if self.norm is None else self.norm(hidden))
        own = vectors if self.logits is None else self.logits.weight
        if own is None:
            raise ValueError("a tied head needs the vectors of the embedding")
        if self._divisor != 1:
            normed = normed / self._divisor
        return linear_cross_entropy(normed, own, labels, self._vocabulary)
