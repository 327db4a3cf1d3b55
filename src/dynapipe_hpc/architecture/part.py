"""Parts of a model: layers of each kind, embedding, head."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from enum import IntEnum
from typing import NamedTuple

from dynapipe_hpc.data.microbatch import MicroBatch, Recompute


class Amount(NamedTuple):
    """Coefficients of a quantity (operations, numbers or bytes) that depends on numbers of tokens.

    Own tokens are those that pass through the part; they may attend to tokens of the other side.
    """

    per_own: int = 0
    per_source: int = 0  # for every token of the other side
    per_pair: int = 0  # for every pair of an own token and a token that it attends to
    per_own_pair: int = 0  # for every pair of own tokens of the same row
    per_square: int = 0  # for every pair of positions in a single row, for any number of rows
    per_far_pair: int = 0  # for every own pair that lies further apart than the part's window
    per_masked_square: int = 0  # like `per_square`, where rows are longer than that window

    def times(self, factor: int) -> "Amount":
        return Amount(*(factor * each for each in self))


NOTHING = Amount()


def total(*amounts: Amount) -> Amount:
    return Amount(*map(sum, zip(NOTHING, *amounts, strict=True)))


class Boundary(IntEnum):
    """Kind of the tensor that a stage sends to the next one, which returns its gradient.

    Where shards divide the tokens of the residual stream, each shard sends and receives its part.
    """

    ROWS = 0  # activation of rows; within and right after an encoder, of encoder rows
    PAIR = 1  # output of the encoder and activation of the decoder, concatenated along tokens

    def shape(self, microbatch: MicroBatch, width: int, n_parts: int) -> tuple[int, ...]:
        """Shape (rows, tokens, width), or (tokens of a shard, width) if `n_parts` divide them."""
        sides = [microbatch.row_tokens]
        if self is Boundary.PAIR:
            sides.append(microbatch.target_tokens)
        if n_parts == 1:
            return (microbatch.n_rows, sum(sides), width)
        return (sum(-(-microbatch.n_rows * tokens // n_parts) for tokens in sides), width)


LAYER, EMBEDDING, HEAD = "layer", "embedding", "head"

BACKWARD_WORK = 2  # gradients of inputs and of weights: two products where forward has one
FLOAT32_BYTES = 4
MASKED_AT_ONCE = 1 << 23
"""Maximum count of numbers that dropout masks at once, however large the tensor."""
MASK_BYTES = 8  # per number, while a mask is made: a hash, and a shift of it
MAX_MASK_BYTES = MASK_BYTES * MASKED_AT_ONCE


class Side(IntEnum):
    """Tokens of a micro-batch that pass through a part; the kernels number them in the same way."""

    INPUTS = 0  # of its rows; in an encoder-decoder model, of the encoder's rows
    TARGETS = 1  # of the decoder's rows, which also attend to the encoder's
    LONGER = 2  # of both sides; the longer side stands for both


class Work(NamedTuple):
    """Floating-point operations of a forward pass.

    A multiplication and the addition that follows it count as two. Norms, activation functions
    and the softmax are left out: memory bandwidth limits them, not arithmetic.
    """

    linear: Amount = NOTHING
    attention: Amount = NOTHING  # scores, and weighted sums of values
    spared: Amount = NOTHING  # not needed by the backward pass, as weights are frozen

    @property
    def forward(self) -> Amount:
        return total(self.linear, self.attention)

    @property
    def backward(self) -> Amount:
        """Operations of the backward pass, recomputation excluded."""
        return total(self.forward.times(BACKWARD_WORK), self.spared.times(-1))


NO_WORK = Work()


@dataclass(frozen=True, slots=True)
class Block:
    """Block of a part on one shard: what lies between two additions to the residual stream."""

    parameters: int  # number of weights, norms and biases included
    largest_weight: int  # size of the largest trained weight, in numbers
    work: Work = NO_WORK
    # Operations of linear maps whose weight gradients may be computed in a separate pass; what
    # these gradients need until then is no more than `kept`.
    deferrable: Amount = NOTHING
    kept: Amount = NOTHING  # numbers kept for the backward pass, in the precision of activations
    n_sums: int = 0  # all-reduces per direction, each of a tensor as wide as the residual stream
    recomputed_in: tuple[Recompute, ...] = ()
    frozen: int = 0  # number of weights that are not trained


class Weights(NamedTuple):
    """Weights of a part on one shard."""

    n_numbers: int  # of all weights, norms and biases included
    n_frozen: int
    n_first: int  # in the first block, which other parts may share


@dataclass(frozen=True, slots=True)
class Part:
    """Part of a model: a layer, the embedding, the head, or the bias that a side's layers share."""

    side: Side
    blocks: tuple[Block, ...]
    entering: Amount = NOTHING  # numbers in the input, all that is kept of recomputed blocks
    # Numbers needed in addition while the forward pass runs, and the limit of each kind.
    transient: Amount = NOTHING
    transient_float32: Amount = NOTHING
    transient_most: float = math.inf
    # Largest count of numbers that one dropout masks. Up to `MASKED_AT_ONCE` of them have a mask at
    # a time; masks are not kept.
    masked: Amount = NOTHING
    # Numbers in the gradient that a layer computes for a shared part, while its backward pass runs,
    # and in the sum of these gradients, held from the first layer's backward pass to the last's.
    gradient_term: Amount = NOTHING
    gradient_sum: Amount = NOTHING
    window: float = math.inf  # most tokens that attention sees, including the token itself

    @property
    def parameters(self) -> int:
        return sum(block.parameters for block in self.blocks)

    @property
    def frozen(self) -> int:
        return sum(block.frozen for block in self.blocks)

    @property
    def largest_weight(self) -> int:
        """Size of the largest trained weight; its gradient is a separate tensor until added up."""
        return max(block.largest_weight for block in self.blocks)

    @property
    def weights(self) -> Weights:
        return Weights(self.parameters, self.frozen, self.blocks[0].parameters)

    @property
    def n_sums(self) -> int:
        return sum(block.n_sums for block in self.blocks)

    @property
    def work(self) -> Work:
        return _work_of(self.blocks)

    def deferred_work(self, recompute: Recompute) -> Amount:
        """Operations of the linear maps whose weight gradients a split backward pass leaves to W.

        A recomputed block keeps only its input, and leaves no weight gradients to W.
        """
        return total(*(block.deferrable for block in self._left(recompute)))

    def recomputed_work(self, recompute: Recompute) -> Amount:
        """Operations of the forward pass that the backward pass recomputes."""
        return _work_of(self._recomputed(recompute)).forward

    def recomputed_bytes(self, recompute: Recompute, element_bytes: int) -> Amount:
        """Bytes that the backward pass recomputes and keeps until it has used them."""
        return _kept_bytes(self._recomputed(recompute), element_bytes)

    def kept_bytes(self, recompute: Recompute, element_bytes: int) -> Amount:
        """Bytes kept from the forward to the backward pass.

        Attention is fused: no matrix of scores is kept. The few numbers that norms and softmaxes
        keep per token, whatever the width, are left out.
        """
        left = self._left(recompute)
        is_entering_kept = len(left) < len(self.blocks)
        entering = self.entering.times(element_bytes) if is_entering_kept else NOTHING
        return total(_kept_bytes(left, element_bytes), entering)

    def passing_bytes(self, recompute: Recompute, element_bytes: int) -> list[Amount]:
        """Bytes that the forward pass makes and does not keep, for each recomputed block.

        Blocks run in turn; at the end of each, all its bytes exist.
        """
        return [block.kept.times(element_bytes) for block in self._recomputed(recompute)]

    def transient_bytes(self, element_bytes: int) -> Amount:
        """Additional bytes needed while the forward pass runs, up to `transient_most_bytes`."""
        own_precision = self.transient.times(element_bytes)
        return total(own_precision, self.transient_float32.times(FLOAT32_BYTES))

    def transient_most_bytes(self, element_bytes: int) -> float:
        """Limit of the additional bytes needed during a forward pass; infinite without a limit."""
        return self.transient_most * (element_bytes + FLOAT32_BYTES)

    @property
    def mask_bytes(self) -> Amount:
        """Bytes of the masks of a dropout while they are made, up to `MAX_MASK_BYTES`."""
        return self.masked.times(MASK_BYTES)

    def _left(self, recompute: Recompute) -> list[Block]:
        return [block for block in self.blocks if recompute not in block.recomputed_in]

    def _recomputed(self, recompute: Recompute) -> list[Block]:
        return [block for block in self.blocks if recompute in block.recomputed_in]


def _work_of(blocks: Sequence[Block]) -> Work:
    return Work(*(total(*amounts) for amounts in zip(*(b.work for b in blocks), strict=True)))


def _kept_bytes(blocks: Sequence[Block], element_bytes: int) -> Amount:
    return total(*(block.kept for block in blocks)).times(element_bytes)
