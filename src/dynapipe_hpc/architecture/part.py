"""The parts that a model is made of: kinds of layers, embedding, head."""

from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum
from typing import NamedTuple

from dynapipe_hpc.architecture.amount import NOTHING, Amount, total
from dynapipe_hpc.data.microbatch import Recompute

LAYER, EMBEDDING, HEAD = "layer", "embedding", "head"

BACKWARD_WORK = 2  # gradients of inputs and of weights: two products where forward has one
FLOAT32_BYTES = 4


class Side(Enum):
    """Tokens of a micro-batch that pass through a part.

    INPUTS: Those of its rows; of an encoder-decoder model, of the encoder's.
    TARGETS: Those of the decoder's rows, which attend to the encoder's as well.
    LONGER: Those of either side, the longer of which stands for both.
    """

    INPUTS = "inputs"
    TARGETS = "targets"
    LONGER = "longer"


class Work(NamedTuple):
    """Floating-point operations of a forward pass.

    A multiplication and the addition that follows are two. Norms, activation functions and the
    softmax are left out: they take as long as memory needs, not as arithmetic does.

    Attributes:
        linear: Those of linear maps, which have weights.
        attention: Those of scores and of the sums of values that they weigh, which have none.
    """

    linear: Amount = NOTHING
    attention: Amount = NOTHING

    @property
    def forward(self) -> Amount:
        """Both together."""
        return total(*self)

    @property
    def backward(self) -> Amount:
        """Operations of the backward pass, but for what it recomputes."""
        return self.forward.times(BACKWARD_WORK)


NO_WORK = Work()


@dataclass(frozen=True, slots=True)
class Block:
    """A piece of a part: what is between two additions to the residual stream.

    Attributes:
        parameters: Weights, norms and biases on one shard.
        work: Operations of its forward pass.
        kept: Numbers that its backward pass needs, in the precision of activations.
        kept_float32: The same for numbers in float32, whatever activations are.
        n_sums: Tensors, one token as wide as the residual stream, that either direction adds up
            over shards.
        recomputed_in: Modes in which the backward pass computes it again.
    """

    parameters: int
    work: Work = NO_WORK
    kept: Amount = NOTHING
    kept_float32: Amount = NOTHING
    n_sums: int = 0
    recomputed_in: tuple[Recompute, ...] = ()


@dataclass(frozen=True, slots=True)
class Part:
    """A layer of some kind, the embedding, the head, or what the layers of a side share.

    Attributes:
        side: Tokens that pass through it.
        blocks: Its arithmetic, of one shard.
        entering: Numbers of its input, all that is kept of what is recomputed.
        transient: Numbers needed on top while its forward pass runs.
        transient_float32: The same for numbers in float32.
    """

    side: Side
    blocks: tuple[Block, ...]
    entering: Amount = NOTHING
    transient: Amount = NOTHING
    transient_float32: Amount = NOTHING

    @property
    def parameters(self) -> int:
        """Number of parameters on one shard."""
        return sum(block.parameters for block in self.blocks)

    @property
    def n_sums(self) -> int:
        """As of a block."""
        return sum(block.n_sums for block in self.blocks)

    @property
    def work(self) -> Work:
        """Operations of the forward pass."""
        return _work_of(self.blocks)

    def recomputed_work(self, recompute: Recompute) -> Amount:
        """Operations of the forward pass that the backward pass repeats."""
        return _work_of(self._recomputed(recompute)).forward

    def recomputed_bytes(self, recompute: Recompute, element_bytes: int) -> Amount:
        """Bytes that the backward pass makes again and keeps until it has used them."""
        return _kept_bytes(self._recomputed(recompute), element_bytes)

    def kept_bytes(self, recompute: Recompute, element_bytes: int) -> Amount:
        """Bytes kept from the forward to the backward pass.

        Attention is fused: no matrix of scores is kept. Numbers that norms and softmaxes keep per
        token, few and independent of any width, are left out.

        Args:
            recompute: What the backward pass computes again.
            element_bytes: Size of one number of an activation.
        """
        left = [block for block in self.blocks if recompute not in block.recomputed_in]
        is_entering_kept = len(left) < len(self.blocks)
        entering = self.entering.times(element_bytes) if is_entering_kept else NOTHING
        return total(_kept_bytes(left, element_bytes), entering)

    def transient_bytes(self, element_bytes: int) -> Amount:
        """Bytes needed on top while the forward pass runs."""
        own_precision = self.transient.times(element_bytes)
        return total(own_precision, self.transient_float32.times(FLOAT32_BYTES))

    def _recomputed(self, recompute: Recompute) -> list[Block]:
        return [block for block in self.blocks if recompute in block.recomputed_in]


def _work_of(blocks: Sequence[Block]) -> Work:
    linear = total(*(block.work.linear for block in blocks))
    return Work(linear, total(*(block.work.attention for block in blocks)))


def _kept_bytes(blocks: Sequence[Block], element_bytes: int) -> Amount:
    kept = total(*(block.kept for block in blocks)).times(element_bytes)
    return total(kept, *(block.kept_float32.times(FLOAT32_BYTES) for block in blocks))
