"""Head of a model: logits and losses, in chunks of the vocabulary.

The logits of a micro-batch are by far its largest tensor. They exist one chunk of ids at a time:
in the forward pass, to add up exponentials, and in the backward pass (docs/decisions/0029).

Source: Wijmans et al., "Cut Your Losses in Large-Vocabulary Language Models", arXiv:2411.09009;
over shards: Shoeybi et al., "Megatron-LM", arXiv:1909.08053, section 3.
"""

import math
from collections.abc import Iterator
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.autograd import Function
from torch.nn import functional

from dynapipe_hpc.architecture.blocks import LOGITS_AT_ONCE
from dynapipe_hpc.architecture.model_shape import ModelShape
from dynapipe_hpc.models.sharding.sharded_linear import ColumnLinear, ResidualStream, places_in
from dynapipe_hpc.models.sharding.shards import Shards

ALIGNED_IDS = 128
"""Chunks of more ids than this are multiples of it: products of matrices of other widths take
kernels that reached a third of the speed (H200, bfloat16)."""


class Vocabulary(NamedTuple):
    """Ids for which a shard computes logits, and the chunks in which it does so."""

    size: int
    shards: Shards  # the shards of the stage, each with a range of ids of equal length

    def chunks(self, n_tokens: int) -> Iterator[range]:
        """Chunks of this shard's ids within the vocabulary, counted from the shard's first id."""
        n_ids = min(self._n_own, max(0, self.size - self.first))
        n_chunks = max(1, -(-n_tokens * n_ids // LOGITS_AT_ONCE))
        n_at_once = max(1, -(-n_ids // n_chunks))
        if n_at_once > ALIGNED_IDS:
            n_at_once -= n_at_once % ALIGNED_IDS
        for start in range(0, n_ids, n_at_once):
            yield range(start, min(start + n_at_once, n_ids))

    @property
    def first(self) -> int:
        return self.shards.shard * self._n_own

    @property
    def _n_own(self) -> int:
        return -(-self.size // self.shards.n_shards)


def linear_cross_entropy(
    hidden: Tensor, vectors: Tensor, labels: Tensor, vocabulary: Vocabulary
) -> Tensor:
    """Cross entropies of the logits `hidden @ vectors.T`, of the shape of `labels`.

    They are computed in float32, or in the type of `hidden` if that is wider, and are the same on
    all shards. Each shard's gradient of `hidden` is the part that its own ids contribute.

    `vectors`: One per id of a shard, (ids of a shard, width). `labels`: Ids to predict, (...).
    """
    flat = hidden.flatten(0, -2), vectors, labels.flatten()
    losses: Tensor = _LinearCrossEntropy.apply(*flat, vocabulary)  # type: ignore[no-untyped-call]
    return losses.view_as(labels)


class _LinearCrossEntropy(Function):
    @staticmethod
    def forward(
        context: Any,
        hidden: Tensor,
        vectors: Tensor,
        labels: Tensor,
        vocabulary: Vocabulary,
    ) -> Tensor:
        wide = torch.promote_types(hidden.dtype, torch.float32)
        own_labels = labels - vocabulary.first
        log_sums = torch.full_like(own_labels, -math.inf, dtype=wide)
        of_labels = torch.zeros_like(own_labels, dtype=wide)
        for chunk in vocabulary.chunks(len(hidden)):
            logits = _logits(hidden, vectors, chunk, wide)
            of_labels += _of_labels(logits, own_labels, chunk)
            log_sums = torch.logaddexp(log_sums, _log_sum_exp(logits))
            del logits  # before the next chunk
        log_sums, of_labels = _of_all_shards(log_sums, of_labels, vocabulary.shards)
        context.save_for_backward(hidden, vectors, own_labels, log_sums)
        context.vocabulary = vocabulary
        return log_sums - of_labels

    @staticmethod
    def backward(context: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        hidden, vectors, own_labels, log_sums = context.saved_tensors
        factors = gradients[0].unsqueeze(1)
        grad_hidden = torch.zeros_like(hidden, dtype=log_sums.dtype)
        grad_vectors = torch.zeros_like(vectors) if context.needs_input_grad[1] else None
        for chunk in context.vocabulary.chunks(len(hidden)):
            grad_logits = _logits(hidden, vectors, chunk, log_sums.dtype)
            grad_logits.sub_(log_sums.unsqueeze(1)).exp_()  # probabilities
            _subtract_ones(grad_logits, own_labels, chunk)
            grad_logits = grad_logits.mul_(factors).to(hidden.dtype)
            ids = slice(chunk.start, chunk.stop)
            if grad_vectors is not None:
                torch.mm(grad_logits.t(), hidden, out=grad_vectors[ids])
            grad_hidden += grad_logits @ vectors[ids]
            del grad_logits
        return grad_hidden.to(hidden.dtype), grad_vectors, None, None


def _logits(hidden: Tensor, vectors: Tensor, chunk: range, dtype: torch.dtype) -> Tensor:
    """Logits of a chunk of ids, shape (n, ids), in memory of their own."""
    return functional.linear(hidden, vectors[chunk.start : chunk.stop]).to(dtype)


def _log_sum_exp(logits: Tensor) -> Tensor:
    """Logarithm of the sum of exponentials, shape (n,); overwrites `logits`."""
    largest = logits.amax(1)
    return logits.sub_(largest.unsqueeze(1)).exp_().sum(1).log_().add_(largest)


def _of_labels(logits: Tensor, own_labels: Tensor, chunk: range) -> Tensor:
    """Logits of the labels, shape (n,); 0 for labels outside of the chunk."""
    columns, is_here = places_in(own_labels, chunk)
    return torch.where(is_here, logits.gather(1, columns.unsqueeze(1)).squeeze(1), 0)


def _subtract_ones(probabilities: Tensor, own_labels: Tensor, chunk: range) -> None:
    columns, is_here = places_in(own_labels, chunk)
    ones = is_here.to(probabilities.dtype).unsqueeze(1)
    probabilities.scatter_add_(1, columns.unsqueeze(1), -ones)


def _of_all_shards(log_sums: Tensor, of_labels: Tensor, shards: Shards) -> tuple[Tensor, Tensor]:
    if shards.n_shards == 1:
        return log_sums, of_labels
    of_shard = torch.stack([log_sums, of_labels]).unsqueeze(0)
    # Each shard adds its numbers in its own row, and zeros in the rows of other shards.
    around = (0, 0, 0, 0, shards.shard, shards.n_shards - 1 - shards.shard)
    sums, labelled = shards.sum_over_shards(functional.pad(of_shard, around)).unbind(1)
    return torch.logsumexp(sums, dim=0), labelled.sum(dim=0)


class Head(nn.Module):
    """Logits, and their losses; `norm` is None if the input is already normalised."""

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
        labels: Tensor | None,
        vectors: Tensor | None = None,
    ) -> Tensor:
        """Cross entropies of predictions, of the shape of `labels`; see `linear_cross_entropy`.

        Without labels, the logits of this shard's ids, shape (rows, tokens, ids of a shard).
        """
        normed = stream.gather(hidden if self.norm is None else self.norm(hidden))
        own = vectors if self.logits is None else self.logits.weight
        if own is None:
            raise ValueError("a tied head needs the vectors of the embedding")
        if self._divisor != 1:
            normed = normed / self._divisor
        if labels is None:
            return functional.linear(normed, own)
        return linear_cross_entropy(normed, own, labels, self._vocabulary)
