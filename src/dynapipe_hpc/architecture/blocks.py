"""Blocks that families of transformers share, each on one shard.

A linear map of n inputs and m outputs takes 2 x n x m operations per token. Numbers kept for the
backward pass include those that enter and leave the norm of a block.
"""

from collections.abc import Mapping
from typing import NamedTuple

from dynapipe_hpc.architecture.lora import Lora
from dynapipe_hpc.architecture.part import (
    EMBEDDING,
    HEAD,
    NOTHING,
    Amount,
    Block,
    Part,
    Side,
    Work,
    total,
)
from dynapipe_hpc.data.microbatch import Recompute

LOGITS_AT_ONCE = 1 << 25
"""Maximum number of logits in memory at once, for any number of tokens and any vocabulary."""
ATTENTION_IN = (Recompute.SELECTIVE, Recompute.FULL)  # modes in which backward recomputes attention


class Maps(NamedTuple):
    """Linear maps of a block that have the same input, on one shard."""

    n_inputs: int
    n_outputs: Mapping[str, int]  # of each map, by its name in `Lora.targets`
    # Numbers kept only for gradients of weights: the input, unless something else needs it, too.
    kept: Amount = NOTHING
    widest: int | None = None  # outputs of the largest weight; None if none joins several maps
    of_source: bool = False  # whether the input has the tokens of the other side
    is_deferrable: bool = True  # whether gradients of weights may be left to W

    def per_token(self, n: int) -> Amount:
        """An amount per token of the input."""
        return Amount(per_source=n) if self.of_source else Amount(n)


def block_of(
    lora: Lora | None,
    *all_maps: Maps,
    vectors: int,
    kept: Amount,
    attention: Amount = NOTHING,
    recomputed_in: tuple[Recompute, ...] = ATTENTION_IN,
) -> Block:
    """A block as it is trained: all of it, or only adapters of its maps, the rest frozen.

    An adapter keeps the product of its first matrix and the input, besides the input of the map.

    `vectors`: Number of weights of norms and biases. `kept`: Numbers kept without adapters.
    `attention`: Operations of attention scores and weighted sums.
    """
    sizes = [maps.n_inputs * sum(maps.n_outputs.values()) for maps in all_maps]
    work = [maps.per_token(2 * n) for maps, n in zip(all_maps, sizes, strict=True)]
    largest = [maps.n_inputs * (maps.widest or max(maps.n_outputs.values())) for maps in all_maps]
    linear, n_weights, frozen, spared = total(*work), vectors + sum(sizes), 0, NOTHING
    if lora is not None:
        frozen, spared = n_weights, linear
        work, largest = [], []
        for maps in all_maps:
            widths = [width for name, width in maps.n_outputs.items() if lora.adapts(name)]
            n = sum(lora.rank * (maps.n_inputs + width) for width in widths)
            n_weights += n
            work.append(maps.per_token(2 * n))
            largest += [lora.rank * max(maps.n_inputs, width) for width in widths]
            more = maps.per_token(lora.rank * len(widths)) if widths else maps.kept.times(-1)
            kept = total(kept, more)
        linear = total(linear, *work)
    waiting = [each for each, maps in zip(work, all_maps, strict=True) if maps.is_deferrable]
    return Block(
        n_weights,
        max(largest, default=0),
        Work(linear, attention, spared),
        deferrable=total(*waiting),
        kept=kept,
        n_sums=1,
        recomputed_in=recomputed_in,
        frozen=frozen,
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

    The loss computes logits in chunks, and recomputes them in the backward pass.
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
