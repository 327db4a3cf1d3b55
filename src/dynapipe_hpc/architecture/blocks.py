"""The blocks that families of transformers share, each on one shard.

A linear map of n inputs and m outputs takes 2 x n x m operations per token. A block counts the
numbers that enter its norm and those that leave it, and what lies between and backward needs.
"""

from dynapipe_hpc.architecture.amount import Amount
from dynapipe_hpc.architecture.part import EMBEDDING, HEAD, Block, Part, Side, Work
from dynapipe_hpc.data.microbatch import Recompute

ATTENTION_IN = (Recompute.SELECTIVE, Recompute.FULL)  # modes that recompute attention


def self_attention(width: int, heads: int, vectors: int) -> Block:
    """Attention of a row to itself, with its norm.

    Args:
        width: Of the residual stream.
        heads: Width of all heads of the shard together.
        vectors: Parameters of its norm and biases.
    """
    return Block(
        parameters=4 * width * heads + vectors,
        work=Work(Amount(8 * width * heads), Amount(per_pair=4 * heads)),
        kept=Amount(2 * width + 4 * heads),
        n_sums=1,
        recomputed_in=ATTENTION_IN,
    )


def cross_attention(width: int, heads: int, vectors: int) -> Block:
    """Attention of targets to the encoder's output, whose keys and values it makes.

    Its pairs count with those of the targets themselves, see `Side.TARGETS`. Arguments as of
    `self_attention`.
    """
    return Block(
        parameters=4 * width * heads + vectors,
        work=Work(Amount(4 * width * heads, 4 * width * heads)),
        kept=Amount(2 * width + 2 * heads, 2 * heads),
        n_sums=1,
        recomputed_in=ATTENTION_IN,
    )


def feed_forward(width: int, inner: int, vectors: int, n_kept: int) -> Block:
    """Two linear maps with an activation function between them.

    Args:
        width: Of the residual stream.
        inner: Width between the maps, on the shard.
        vectors: Parameters of its norm and biases.
        n_kept: Tensors of the inner width that backward needs: what leaves the function, and
            what enters it, if its derivative cannot be told from what leaves it.
    """
    return Block(
        parameters=2 * width * inner + vectors,
        work=Work(Amount(4 * width * inner)),
        kept=Amount(2 * width + n_kept * inner),
        n_sums=1,
        recomputed_in=(Recompute.FULL,),
    )


def layer(side: Side, width: int, inner: int, *blocks: Block) -> Part:
    """Blocks that add to the residual stream one after the other, a feed-forward block last."""
    return Part(side, blocks, entering=Amount(width), transient=Amount(width + inner))


def ends(
    width: int, vocabulary: int, *, embedded: Side, predicted: Side, positions: int, vectors: int
) -> dict[str, Part]:
    """The embedding, which looks up rows of its weights, and the head with the loss.

    Args:
        width: Of the residual stream.
        vocabulary: Token ids of the shard.
        embedded: Tokens that are looked up.
        predicted: Tokens that are predicted.
        positions: Rows of a table of positions, which are added.
        vectors: Parameters of norms that count with the head.
    """
    lookup = Block((vocabulary + positions) * width, Work(Amount(width)), n_sums=1)
    logits = Block(
        vocabulary * width + vectors,
        Work(Amount(2 * width * vocabulary)),
        kept=Amount(2 * width),
        kept_float32=Amount(vocabulary),
        n_sums=1,
    )
    return {
        EMBEDDING: Part(embedded, (lookup,), transient=Amount(width)),
        HEAD: Part(predicted, (logits,), transient_float32=Amount(vocabulary)),
    }
