"""GPT as torch modules: the layers of one pipeline stage."""

from torch import Tensor, nn

from dynapipe_hpc.data.microbatch import MicroBatch, Recompute
from dynapipe_hpc.models.collate import TokenBatch, collate
from dynapipe_hpc.models.family import StageOfFamily
from dynapipe_hpc.models.initialize import Deviation, gpt_deviation
from dynapipe_hpc.models.iteration_tokens import IterationTokens
from dynapipe_hpc.models.linear_cross_entropy import Vocabulary, linear_cross_entropy
from dynapipe_hpc.models.residual_stream import ResidualStream, residual_stream
from dynapipe_hpc.models.sharded_linear import ColumnLinear
from dynapipe_hpc.models.sharded_vocabulary import TokenEmbedding
from dynapipe_hpc.models.shards import Shards
from dynapipe_hpc.models.transformer import TransformerLayer
from dynapipe_hpc.plan.model_shape import ModelShape


class GptStage(StageOfFamily):
    """Pipeline stage of a GPT: some layers, on the first the embedding, on the last the head."""

    def build(self, shape: ModelShape, layers: range, shards: Shards) -> None:
        """Adds the embedding on the first stage, layers, and the head on the last."""
        self._shards = shards
        self.embedding = Embedding(shape, shards) if self.is_first else None
        self.layers = nn.ModuleDict({str(i): TransformerLayer(shape, shards) for i in layers})
        self.head = Head(shape, shards) if self.is_last else None

    def deviation(self, shape: ModelShape) -> Deviation:
        """Standard deviations of initial weights, as in GPT-2."""
        return gpt_deviation(shape.n_layers)

    @property
    def loads(self) -> bool:
        """Whether the stage reads tokens: those that it embeds or predicts."""
        return self.is_first or self.is_last

    def collate(self, microbatch: MicroBatch, tokens: IterationTokens) -> TokenBatch:
        """The batch that `run` needs of a micro-batch, see `collate`."""
        return collate(microbatch, tokens)

    def run(
        self, activation: Tensor | None, batch: TokenBatch | None, recompute: Recompute
    ) -> Tensor:
        """Runs the stage on a micro-batch, see `forward`.

        Args:
            activation: Output of the previous stage; None on the first.
            batch: Tokens; None if the stage loads none.
            recompute: Activation checkpointing mode of every layer.
        """
        if batch is None:
            if activation is None:
                raise ValueError("neither an activation was received nor tokens loaded")
            return self.forward(activation, recompute=recompute)
        inputs = batch.tokens if activation is None else activation
        return self.forward(inputs, batch.labels, batch.weights, recompute)

    def forward(
        self,
        inputs: Tensor,
        labels: Tensor | None = None,
        weights: Tensor | None = None,
        recompute: Recompute = Recompute.NONE,
    ) -> Tensor:
        """Runs the stage.

        Args:
            inputs: Token ids (rows, tokens) on the first stage, elsewhere the activation
                (rows, tokens, width) of the previous stage.
            labels: Token ids to predict, (rows, tokens); the last stage needs them.
            weights: Weight of each prediction in the loss, (rows, tokens); needed as `labels` are.
            recompute: Activation checkpointing mode of every layer.

        Returns:
            The activation (rows, tokens, width); on the last stage the loss, a scalar: the
            weighted sum over all positions.
        """
        stream = residual_stream(self._shards, *inputs.shape[:2])
        embed = self.embedding
        hidden = stream.begin(inputs) if embed is None else embed(inputs, stream)
        for layer in self.layers.values():
            hidden = layer(hidden, stream, recompute)
        if self.head is None:
            return stream.end(hidden)
        if labels is None or weights is None:
            raise ValueError("the last stage computes the loss and needs labels and weights")
        loss: Tensor = self.head(hidden, stream, labels, weights)
        return loss


class Embedding(nn.Module):
    """Embedding: sum of learned vectors of tokens and of their positions in the row."""

    def __init__(self, shape: ModelShape, shards: Shards) -> None:
        super().__init__()
        self.tokens = TokenEmbedding(shape.vocab_size, shape.hidden_size, shards)
        self.positions = nn.Embedding(shape.max_tokens, shape.hidden_size)

    def forward(self, tokens: Tensor, stream: ResidualStream) -> Tensor:
        """Maps token ids (rows, tokens) to a tensor of the stream."""
        embedded: Tensor = self.tokens(tokens, stream) + stream.rows_of(self.positions.weight)
        return embedded


class Head(nn.Module):
    """Head: final norm, logits and loss."""

    def __init__(self, shape: ModelShape, shards: Shards) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(shape.hidden_size)
        self.logits = ColumnLinear(shape.hidden_size, shape.vocab_size, shards, bias=False)
        self._vocabulary = Vocabulary(shape.vocab_size, shards)

    def forward(
        self, hidden: Tensor, stream: ResidualStream, labels: Tensor, weights: Tensor
    ) -> Tensor:
        """Maps a tensor of the stream to the weighted sum of cross entropies, a scalar."""
        normed = stream.gather(self.norm(hidden))
        return linear_cross_entropy(normed, self.logits.weight, labels, weights, self._vocabulary)


STAGE = GptStage
