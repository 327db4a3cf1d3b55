"""Attention bias by the distance between two positions."""

import math

import torch
from torch import Tensor, nn

from dynapipe_hpc.architecture.t5 import T5Shape
from dynapipe_hpc.models.sharding.shards import Shards
from dynapipe_hpc.models.sharding.split import Split


class RelativeBias(nn.Module):
    """A learned number per head and bucket of distances, which all layers of a side share.

    Every shard has those of its own heads.

    Source:
        Raffel et al., "T5", JMLR 2020, section 2.1.
    """

    def __init__(self, shape: T5Shape, shards: Shards, *, causal: bool) -> None:
        super().__init__()
        self._n_buckets, self._max_distance = shape.n_buckets, shape.max_distance
        self.weight = nn.Parameter(torch.empty(self._n_buckets, shape.n_heads // shards.n_shards))
        self.splits = {"weight": Split(1, 1, shards.shard, shards.n_shards)}
        self._causal = causal

    def forward(self, tokens: int, padding: Tensor | None = None) -> Tensor:
        """Numbers to add to scores, shape (rows or 1, heads, tokens, tokens).

        They are -inf where a causal side may not look, and at padding.

        Args:
            tokens: Length of the rows.
            padding: What keeps attention off padding, shape (rows, 1, 1, tokens); None without.
        """
        distances = torch.arange(1 - tokens, tokens, device=self.weight.device)
        found = buckets(distances, self._n_buckets, self._max_distance, causal=self._causal)
        numbers = self.weight[found].t()  # (heads, distances)
        if self._causal:
            numbers = numbers.masked_fill(distances > 0, -math.inf)
        # Row i starts tokens - 1 - i distances in: every row is a window of the same numbers.
        bias = numbers.unfold(-1, tokens, 1).flip(1).unsqueeze(0)
        return bias if padding is None else bias + padding


def buckets(distances: Tensor, n_buckets: int, max_distance: int, *, causal: bool) -> Tensor:
    """The bucket of every distance, from the position that looks to the one looked at.

    Half of the buckets hold one distance each, the others ever more of them. Where positions look
    both ways, either direction has half of all buckets.

    Args:
        distances: Integers of any shape; ahead is positive.
        n_buckets: Number of buckets.
        max_distance: Distance from which on all share a bucket.
        causal: Whether positions only look back; all that is ahead counts as 0 then.
    """
    n_buckets = n_buckets if causal else n_buckets // 2
    far = (-distances).clamp(min=0) if causal else distances.abs()
    n_single = n_buckets // 2
    # In float32, as where the models come from: rounding decides at the edges of some buckets.
    octaves = torch.log(far.clamp(min=1).float() / n_single) / math.log(max_distance / n_single)
    grouped = n_single + (octaves * (n_buckets - n_single)).long()
    found = torch.where(far < n_single, far, grouped.clamp(max=n_buckets - 1))
    return found if causal else found + n_buckets * (distances > 0)
