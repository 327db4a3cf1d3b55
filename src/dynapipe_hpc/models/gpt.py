"""GPT as torch modules: the layers of one pipeline stage."""

from dataclasses import dataclass

import torch
from torch import Tensor, nn

from dynapipe_hpc.data.microbatch import MicroBatch, Recompute
from dynapipe_hpc.models.family import StageOfFamily
from dynapipe_hpc.models.initialize import Deviation, gpt_deviation
from dynapipe_hpc.models.linear_cross_entropy import Vocabulary, linear_cross_entropy
from dynapipe_hpc.models.sharding.residual_stream import ResidualStream, residual_stream
from dynapipe_hpc.models.sharding.sharded_linear import ColumnLinear
from dynapipe_hpc.models.sharding.sharded_vocabulary import TokenEmbedding
from dynapipe_hpc.models.sharding.shards import Shards
from dynapipe_hpc.models.tokens.collate import TokenBatch, collate
from dynapipe_hpc.models.tokens.documents import Documents
from dynapipe_hpc.models.tokens.iteration_tokens import IterationTokens
from dynapipe_hpc.models.transformer import TransformerLayer
from dynapipe_hpc.plan.model_shape import ModelShape


@dataclass(frozen=True, slots=True, eq=False)
class GptBatch:
    """What a stage of a GPT knows of a micro-batch.

    Attributes:
        size: Numbers of rows and of tokens per row.
        documents: Documents of a packed row; None in other layouts.
        tokens: Tokens; None on a stage that neither embeds nor predicts them.
    """

    size: tuple[int, int]
    documents: Documents | None
    tokens: TokenBatch | None

    def to(self, device: torch.device) -> "GptBatch":
        """The same on a device."""
        documents, tokens = self.documents, self.tokens
        return GptBatch(self.size, documents and documents.to(device), tokens and tokens.to(device))


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

    def collate(self, microbatch: MicroBatch, tokens: IterationTokens) -> GptBatch:
        """The batch that `run` needs of a micro-batch, with tokens where they are used."""
        reads = self.is_first or self.is_last
        read = collate(microbatch, tokens) if reads else None
        return GptBatch((microbatch.n_rows, microbatch.row_tokens), Documents.of(microbatch), read)

    def run(self, activation: Tensor | None, batch: GptBatch, recompute: Recompute) -> Tensor:
        """Runs the stage on a micro-batch, see `forward`.

        Args:
            activation: Output of the previous stage; None on the first.
            batch: Documents and tokens.
            recompute: Activation checkpointing mode of every layer.
        """
        tokens, documents = batch.tokens, batch.documents
        if tokens is None:
            if activation is None:
                raise ValueError("neither an activation was received nor tokens loaded")
            return self.forward(activation, None, None, recompute, documents, batch.size)
        inputs = tokens.tokens if activation is None else activation
        return self.forward(inputs, tokens.labels, tokens.weights, recompute, documents, batch.size)

    def forward(
        self,
        inputs: Tensor,
        labels: Tensor | None = None,
        weights: Tensor | None = None,
        recompute: Recompute = Recompute.NONE,
        documents: Documents | None = None,
        size: tuple[int, int] | None = None,
    ) -> Tensor:
        """Runs the stage.

        Args:
            inputs: Token ids (rows, tokens) on the first stage, elsewhere the activation of the
                previous stage, in the form in which shards hold the residual stream.
            labels: Token ids to predict, (rows, tokens); the last stage needs them.
            weights: Weight of each prediction in the loss, (rows, tokens); needed as `labels` are.
            recompute: Activation checkpointing mode of every layer.
            documents: Documents of a packed row, each with positions and attention of its own;
                None for positions of and attention over whole rows.
            size: Numbers of rows and of tokens per row; None for those of `inputs`.

        Returns:
            The activation, in the same form; on the last stage the loss, a scalar: the weighted
            sum over all positions.
        """
        stream = residual_stream(self._shards, *(size or inputs.shape[:2]))
        embed = self.embedding
        hidden = inputs if embed is None else embed(inputs, stream, documents)
        for layer in self.layers.values():
            hidden = layer(hidden, stream, recompute, documents)
        if self.head is None:
            return hidden
        if labels is None or weights is None:
            raise ValueError("the last stage computes the loss and needs labels and weights")
        loss: Tensor = self.head(hidden, stream, labels, weights)
        return loss


class Embedding(nn.Module):
    """Embedding: sum of learned vectors of tokens and of their positions in row or document."""

    def __init__(self, shape: ModelShape, shards: Shards) -> None:
        super().__init__()
        self.tokens = TokenEmbedding(shape.vocab_size, shape.hidden_size, shards)
        self.positions = nn.Embedding(shape.max_tokens, shape.hidden_size)

    def forward(
        self, tokens: Tensor, stream: ResidualStream, documents: Documents | None = None
    ) -> Tensor:
        """Maps token ids (rows, tokens) to a tensor of the stream."""
        positions = None if documents is None else documents.positions
        embedded: Tensor = self.tokens(tokens, stream)
        return embedded + stream.rows_of(self.positions.weight, positions)


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
