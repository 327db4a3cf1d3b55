"""Blocks that families of transformers share, each on one shard.

A linear map of n inputs and m outputs takes 2 x n x m operations per token. Numbers kept for the
backward pass include those that enter and leave the norm of a block.
"""

from dynapipe_hpc.architecture.amount import Amount
from dynapipe_hpc.architecture.part import EMBEDDING, HEAD, Block, Part, Side, Work
from dynapipe_hpc.data.microbatch import Recompute

LOGITS_AT_ONCE = 1 << 25
"""Largest number of logits in memory at once, for any tokens and any vocabulary."""
ATTENTION_IN = (Recompute.SELECTIVE, Recompute.FULL)  # modes in which backward recomputes attention


def self_attention(width: int, stream: int, heads: int, vectors: int, n_joined: int) -> Block:
    """Self-attention of a row, with its norm.

    Args:
        width: Width of the residual stream.
        stream: Part of that width that a shard holds, on average over tokens.
        heads: Total width of the heads on the shard.
        vectors: Number of parameters of the norm and the biases.
        n_joined: Number of the maps of queries, keys and values that share one weight.
    """
    maps = Amount(8 * width * heads)
    return Block(
        parameters=4 * width * heads + vectors,
        largest_weight=n_joined * width * heads,
        work=Work(maps, Amount(per_pair=4 * heads)),
        deferrable=maps,
        kept=Amount(2 * stream + 4 * heads),
        n_sums=1,
        recomputed_in=ATTENTION_IN,
    )


def cross_attention(width: int, stream: int, heads: int, vectors: int, n_joined: int) -> Block:
    """Cross-attention of targets to the encoder's output, from which keys and values are computed.

    Its pairs of tokens are counted with those of the targets' self-attention, see `Side.TARGETS`.
    The arguments are those of `self_attention`.
    """
    maps = Amount(4 * width * heads, 4 * width * heads)
    return Block(
        parameters=4 * width * heads + vectors,
        largest_weight=n_joined * width * heads,
        work=Work(maps),
        deferrable=maps,
        kept=Amount(2 * stream + 2 * heads, 2 * heads),
        n_sums=1,
        recomputed_in=ATTENTION_IN,
    )


def feed_forward(width: int, stream: int, inner: int, vectors: int, n_kept: int) -> Block:
    """Feed-forward block: two linear maps with an activation function between them.

    Args:
        width: Width of the residual stream.
        stream: Part of that width that a shard holds, on average over tokens.
        inner: Width between the maps, on the shard.
        vectors: Number of parameters of the norm and the biases.
        n_kept: Number of tensors of the inner width that backward needs: the function's output
            and, if its derivative cannot be computed from that, its input. For the gradients of
            as many of the two maps there is room until W.
    """
    return Block(
        parameters=2 * width * inner + vectors,
        largest_weight=width * inner,
        work=Work(Amount(4 * width * inner)),
        deferrable=Amount(2 * n_kept * width * inner),
        kept=Amount(2 * stream + n_kept * inner),
        n_sums=1,
        recomputed_in=(Recompute.FULL,),
    )


def relative_bias(side: Side, heads: int, n_numbers: int, kept: Amount) -> Part:
    """What a side's layers share: a tensor that is added to scores, and its learned numbers.

    Every layer's attention keeps the same tensor. Kernels that fuse attention compute its gradient
    in full for every layer, with all rows.

    Args:
        side: Side of the layers.
        heads: Number of heads on the shard.
        n_numbers: Number of learned numbers on the shard.
        kept: Numbers of the tensor, per head.
    """
    added = kept.times(heads)
    return Part(
        side,
        (Block(n_numbers, largest_weight=n_numbers, kept=added),),
        gradient_term=Amount(per_own_pair=heads),
        gradient_sum=added,
    )


def layer(side: Side, width: int, stream: int, inner: int, *blocks: Block) -> Part:
    """A layer: blocks that add to the residual stream in turn, the feed-forward block last."""
    return Part(side, blocks, entering=Amount(stream), transient=Amount(width + inner))


def ends(
    width: int,
    stream: int,
    vocabulary: int,
    *,
    embedded: Side,
    predicted: Side,
    positions: int,
    vectors: int,
) -> dict[str, Part]:
    """The embedding, which looks up rows of its weights, and the head, with the loss.

    The loss computes logits in chunks, and again in the backward pass.

    Args:
        width: Width of the residual stream.
        stream: Part of the width that a shard holds, see `self_attention`.
        vocabulary: Number of token ids on the shard.
        embedded: Tokens that are looked up.
        predicted: Tokens that are predicted.
        positions: Number of rows of the table of learned positions; 0 without one.
        vectors: Number of parameters of the final norms, which count with the head.
    """
    lookup = Block(
        (vocabulary + positions) * width,
        largest_weight=max(vocabulary, positions) * width,
        work=Work(Amount(width)),
        n_sums=1,
    )
    norm = Block(vectors, largest_weight=min(vectors, width), kept=Amount(stream + width))
    logits = Block(
        vocabulary * width,
        largest_weight=vocabulary * width,
        work=Work(Amount(2 * width * vocabulary)),
        n_sums=1,
        recomputed_in=tuple(Recompute),
    )
    head = Part(
        predicted,
        (norm, logits),
        transient=Amount(vocabulary),
        transient_float32=Amount(vocabulary),
        transient_most=LOGITS_AT_ONCE,
    )
    return {EMBEDDING: Part(embedded, (lookup,), transient=Amount(width)), HEAD: head}
