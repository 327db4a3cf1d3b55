"""What a vocabulary's ids go through where it is cut over shards.

Source:
    Shoeybi et al., "Megatron-LM", arXiv:1909.08053, section 3: embeddings and cross entropy.
"""

import math

import torch
from torch import Tensor, nn
from torch.nn import functional

from dynapipe_hpc.models.shards import Shards, summed
from dynapipe_hpc.models.split import Split


class TokenEmbedding(nn.Module):
    """Learned vectors, of which each shard holds those of a range of ids.

    Args:
        vocab_size: Number of ids; the last shards are filled up with vectors of zeros.
        width: Of a vector.
        shards: The shards of the stage.
    """

    def __init__(self, vocab_size: int, width: int, shards: Shards) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(-(-vocab_size // shards.n_shards), width))
        split = Split(0, 1, shards.shard, shards.n_shards, vocab_size)
        self.splits = {"weight": split}
        self._shards = shards

    def forward(self, tokens: Tensor) -> Tensor:
        """Maps ids (rows, tokens) to (rows, tokens, width), the same on all shards."""
        if self._shards.n_shards == 1:
            return functional.embedding(tokens, self.weight)
        own, is_own = _own(tokens, len(self.weight), self._shards)
        found = functional.embedding(own, self.weight) * is_own.unsqueeze(-1)
        return summed(found, self._shards)


def without_padding(logits: Tensor, vocab_size: int, shards: Shards) -> Tensor:
    """Logits of which those beyond the vocabulary have no probability, in place.

    Args:
        logits: This shard's, shape (..., ids of a shard).
        vocab_size: Number of ids of all shards.
        shards: The shards of the stage.
    """
    n_own = logits.shape[-1]
    n_real = min(n_own, vocab_size - shards.shard * n_own)
    if n_real < n_own:
        logits[..., n_real:] = -math.inf
    return logits


def cross_entropies(logits: Tensor, labels: Tensor, shards: Shards) -> Tensor:
    """Minus the logarithm of the probability of each label, in float32 at least.

    A shard knows the logits of its range of ids. Shards tell each other two numbers per label:
    the logarithm of the sum of what they know, exponentiated, and the label's logit.

    Args:
        logits: This shard's, shape (n, ids of a shard); minus infinity for ids that do not count.
        labels: Ids, shape (n,).
        shards: The shards of the stage.

    Returns:
        Shape (n,), the same on all shards.
    """
    exact = logits.to(torch.promote_types(logits.dtype, torch.float32))
    if shards.n_shards == 1:
        return functional.cross_entropy(exact, labels, reduction="none")
    own, is_own = _own(labels, exact.shape[1], shards)
    of_label = exact.gather(1, own.unsqueeze(1)).squeeze(1) * is_own
    told = torch.stack([torch.logsumexp(exact, dim=1), of_label])
    # Each adds zeros to what the others tell.
    places = nn.functional.pad(told.unsqueeze(0), _around(shards))
    sums, labelled = summed(places, shards).unbind(1)
    return torch.logsumexp(sums, dim=0) - labelled.sum(dim=0)


def _around(shards: Shards) -> tuple[int, ...]:
    """What to pad (1, 2, n) with to put it into its place in (shards, 2, n)."""
    return (0, 0, 0, 0, shards.shard, shards.n_shards - 1 - shards.shard)


def _own(ids: Tensor, n_own: int, shards: Shards) -> tuple[Tensor, Tensor]:
    """Places of ids in this shard's range, 0 for those of others; and which are its own."""
    places = ids - shards.shard * n_own
    is_own = (places >= 0) & (places < n_own)
    return places * is_own, is_own
