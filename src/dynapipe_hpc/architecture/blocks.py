"""Blocks that families of transformers share, each on one shard.

A linear map of n inputs and m outputs takes 2 x n x m operations per token. Numbers kept for the
backward pass include those that enter and leave the norm of a block.
"""

from dynapipe_hpc.architecture.part import EMBEDDING, HEAD, Amount, Block, Part, Side, Work
from dynapipe_hpc.data.microbatch import Recompute

LOGITS_AT_ONCE = 1 << 25
"""Largest number of logits in memory at once, for any tokens and any vocabulary."""
ATTENTION_IN = (Recompute.SELECTIVE, Recompute.FULL)  # modes in which backward recomputes attention


def self_attention(
    width: int,
    stream: int,
    heads: int,
    *,
    vectors: int,
    n_joined: int,
    sources: int | None = None,
    is_normed: bool = False,
) -> Block:
    """Self-attention of a row, with its norm.

    `sources`: Total width of the heads of keys (and of values) on the shard; None for `heads`.
    `is_normed`: Whether queries and keys go through norms of their own, which keep their inputs.
    """
    both = heads + (heads if sources is None else sources)
    maps = Amount(4 * width * both)
    return Block(
        parameters=2 * width * both + vectors,
        largest_weight=n_joined * width * heads,
        work=Work(maps, Amount(per_pair=4 * heads)),
        deferrable=maps,
        kept=Amount(2 * stream + (3 if is_normed else 2) * both),
        n_sums=1,
        recomputed_in=ATTENTION_IN,
    )


def cross_attention(width: int, stream: int, heads: int, *, vectors: int, n_joined: int) -> Block:
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


def feed_forward(
    width: int, stream: int, inner: int, *, vectors: int, n_kept: int, n_joined: int = 1
) -> Block:
    """Feed-forward block: linear maps to an inner width and back, a function between them.

    `n_kept`: Number of tensors of the inner width that backward needs: the function's output and,
    if its derivative cannot be computed from that, its inputs. For the gradients of as many of the
    maps there is room until W. `n_joined`: Number of the maps to the inner width, which share one
    weight; 2 with a gate.
    """
    n_maps = n_joined + 1
    return Block(
        parameters=n_maps * width * inner + vectors,
        largest_weight=n_joined * width * inner,
        work=Work(Amount(2 * n_maps * width * inner)),
        deferrable=Amount(2 * n_kept * width * inner),
        kept=Amount(2 * stream + n_kept * inner),
        n_sums=1,
        recomputed_in=(Recompute.FULL,),
    )


def relative_bias(side: Side, heads: int, n_numbers: int, kept: Amount) -> Part:
    """Bias that a side's layers share: a tensor that is added to scores, and its learned numbers.

    Every layer's attention keeps the same tensor. Kernels that fuse attention compute its gradient
    in full for every layer, with all rows.
    """
    added = kept.times(heads)
    return Part(
        side,
        (Block(n_numbers, largest_weight=n_numbers, kept=added),),
        gradient_term=Amount(per_own_pair=heads),
        gradient_sum=added,
    )


def layer(side: Side, width: int, stream: int, inner: int, *blocks: Block, masked: int = 0) -> Part:
    """A layer: blocks that add to the residual stream in turn, the feed-forward block last."""
    return Part(
        side,
        blocks,
        entering=Amount(stream),
        transient=Amount(width + inner),
        masked=Amount(masked),
    )


def ends(
    width: int,
    stream: int,
    vocabulary: int,
    *,
    embedded: Side,
    predicted: Side,
    positions: int,
    vectors: int,
    masked: int = 0,
    masked_head: int = 0,
) -> dict[str, Part]:
    """The embedding, which looks up rows of its weights, and the head, with the loss.

    The loss computes logits in chunks, and again in the backward pass.
    """
    lookup = Block(
        vocabulary * width,
        largest_weight=vocabulary * width,
        work=Work(Amount(width)),
        n_sums=1,
    )
    learned = Block(positions * width, largest_weight=positions * width)
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
        masked=Amount(masked_head),
    )
    return {
        EMBEDDING: Part(
            embedded, (lookup, learned), transient=Amount(width), masked=Amount(masked)
        ),
        HEAD: head,
    }
