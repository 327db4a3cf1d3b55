"""Embedding of token ids whose vectors are cut over shards.

Source:
    Shoeybi et al., "Megatron-LM", arXiv:1909.08053, section 3.
"""

import torch
from torch import Tensor, nn
from torch.nn import functional

from dynapipe_hpc.models.sharding.residual_stream import ResidualStream
from dynapipe_hpc.models.sharding.shards import Shards
from dynapipe_hpc.models.sharding.split import Split


class TokenEmbedding(nn.Module):
    """Learned vectors, of which each shard holds those of a range of ids."""

    def __init__(self, vocab_size: int, width: int, shards: Shards) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(-(-vocab_size // shards.n_shards), width))
        split = Split(0, 1, shards.shard, shards.n_shards, vocab_size)
        self.splits = {"weight": split}
        self._shards = shards

    def forward(self, tokens: Tensor, stream: ResidualStream) -> Tensor:
        """Maps ids (rows, tokens) to their vectors; of the stream."""
        if self._shards.n_shards == 1:
            return functional.embedding(tokens, self.weight)
        own, is_own = _own_ids(tokens, len(self.weight), self._shards)
        found = functional.embedding(own, self.weight) * is_own.unsqueeze(-1)
        return stream.sum(found)


def _own_ids(ids: Tensor, n_own: int, shards: Shards) -> tuple[Tensor, Tensor]:
    """Places of ids in this shard's range, 0 for those of others; and which are its own."""
    places = ids - shards.shard * n_own
    is_own = (places >= 0) & (places < n_own)
    return places * is_own, is_own
