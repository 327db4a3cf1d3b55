"""Parts of a model: layers of each kind, embedding, head."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from enum import IntEnum
from typing import NamedTuple

from dynapipe_hpc.data.microbatch import MicroBatch, Recompute


class Amount(NamedTuple):
    """Coefficients of a quantity (operations, numbers or bytes) that depends on numbers of tokens.

    Attributes:
        per_own: Amount for every token that passes through the part (an own token).
        per_source: Amount for every token of the other side, which own tokens attend to.
        per_pair: Amount for every pair of an own token and a token that it attends to.
        per_own_pair: Amount for every pair of own tokens of the same row.
        per_square: Amount for every pair of positions in a single row, for any number of rows.
        per_far_pair: Amount for every pair of own tokens of the same row that lie further apart
            than the window of the part.
        per_masked_square: Amount like `per_square`, where rows are longer than that window.
    """

    per_own: int = 0
    per_source: int = 0
    per_pair: int = 0
    per_own_pair: int = 0
    per_square: int = 0
    per_far_pair: int = 0
    per_masked_square: int = 0

    def times(self, factor: int) -> "Amount":
        return Amount(*(factor * each for each in self))


NOTHING = Amount()


def total(*amounts: Amount) -> Amount:
    return Amount(*map(sum, zip(NOTHING, *amounts, strict=True)))


class Boundary(IntEnum):
    """Kind of the tensor that a stage sends to the next one, which returns its gradient.

    ROWS: Activation of a micro-batch's rows; within and right after an encoder, of encoder rows.
    PAIR: Output of the encoder and activation of the decoder, concatenated along tokens.

    Where shards divide the tokens of the residual stream, each shard sends and receives its part.
    """

    ROWS = 0
    PAIR = 1

    def shape(self, microbatch: MicroBatch, width: int, n_parts: int) -> tuple[int, ...]:
        """Shape of the tensor, for a micro-batch.

        Args:
            microbatch: The micro-batch.
            width: Width of the residual stream.
            n_parts: Number of shards that divide the tokens; 1 if each holds all.

        Returns:
            (rows, tokens, width), or (tokens of a shard, width) if tokens are divided.
        """
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
    """Tokens of a micro-batch that pass through a part; the kernels number them in the same way.

    INPUTS: Tokens of its rows; in an encoder-decoder model, of the encoder's rows.
    TARGETS: Tokens of the decoder's rows, which also attend to the encoder's.
    LONGER: Tokens of both sides; the longer side stands for both.
    """

    INPUTS = 0
    TARGETS = 1
    LONGER = 2


class Work(NamedTuple):
    """Floating-point operations of a forward pass.

    A multiplication and the addition that follows it count as two. Norms, activation functions
    and the softmax are left out: memory bandwidth limits them, not arithmetic.

    Attributes:
        linear: Operations of linear maps, which have weights.
        attention: Operations of attention scores and of the weighted sums of values, which have no
            weights.
        spared: Operations that the backward pass does not need, as weights are frozen.
    """

    linear: Amount = NOTHING
    attention: Amount = NOTHING
    spared: Amount = NOTHING

    @property
    def forward(self) -> Amount:
        """Operations of linear maps and attention together."""
        return total(self.linear, self.attention)

    @property
    def backward(self) -> Amount:
        """Operations of the backward pass, recomputation excluded."""
        return total(self.forward.times(BACKWARD_WORK), self.spared.times(-1))


NO_WORK = Work()


@dataclass(frozen=True, slots=True)
class Block:
    """Block of a part: what lies between two additions to the residual stream.

    Attributes:
        parameters: Number of weights on one shard, norms and biases included.
        largest_weight: Size of the largest trained weight, in numbers.
        work: Number of operations of the forward pass.
        deferrable: Operations of linear maps whose weight gradients may be computed in a separate
            pass; what these gradients need until then is no more than `kept`.
        kept: Numbers kept for the backward pass, in the precision of activations.
        n_sums: Number of all-reduces over shards in each direction, each of a tensor as wide as the
            residual stream.
        recomputed_in: Modes in which the backward pass recomputes the block.
        frozen: Number of weights that are not trained.
    """

    parameters: int
    largest_weight: int
    work: Work = NO_WORK
    deferrable: Amount = NOTHING
    kept: Amount = NOTHING
    n_sums: int = 0
    recomputed_in: tuple[Recompute, ...] = ()
    frozen: int = 0


class Weights(NamedTuple):
    """Weights of a part on one shard.

    Attributes:
        n_numbers: Number of all weights, norms and biases included.
        n_frozen: Number of weights that are not trained.
        n_first: Number of weights in the first block, which other parts may share.
    """

    n_numbers: int
    n_frozen: int
    n_first: int


@dataclass(frozen=True, slots=True)
class Part:
    """Part of a model: a layer, the embedding, the head, or the bias that a side's layers share.

    Attributes:
        side: Tokens that pass through the part.
        blocks: Blocks of the part, on one shard.
        entering: Numbers in the part's input, all that is kept of recomputed blocks.
        transient: Numbers needed in addition while the forward pass runs.
        transient_float32: Numbers in float32 needed in addition while the forward pass runs.
        transient_most: Limit of each of these two kinds of transient numbers.
        masked: Largest count of numbers that one dropout masks. Up to `MASKED_AT_ONCE` of them have
            a mask at a time; masks are not kept.
        gradient_term: Numbers in the gradient that a layer computes for a shared part; it
            exists while the layer's backward pass runs.
        gradient_sum: Numbers in the sum of these gradients, which is held from the first
            layer's backward pass to the last layer's.
        window: Number of tokens that attention with a window sees at most, including the token
            itself; infinite without a window.
    """

    side: Side
    blocks: tuple[Block, ...]
    entering: Amount = NOTHING
    transient: Amount = NOTHING
    transient_float32: Amount = NOTHING
    transient_most: float = math.inf
    masked: Amount = NOTHING
    gradient_term: Amount = NOTHING
    gradient_sum: Amount = NOTHING
    window: float = math.inf

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
