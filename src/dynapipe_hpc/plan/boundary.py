"""What travels between two neighbouring stages."""

from enum import IntEnum

from dynapipe_hpc.data.microbatch import MicroBatch


class Boundary(IntEnum):
    """What a stage hands to the next one, which returns its gradient.

    ROWS: The activation of a micro-batch's rows; of an encoder-decoder model those of the
        encoder, up to its output.
    PAIR: The encoder's output and the decoder's activation, one behind the other along tokens.
    """

    ROWS = 0
    PAIR = 1

    def tokens_of(self, microbatch: MicroBatch) -> int:
        """Tokens per row of the tensor that travels."""
        behind = microbatch.target_tokens if self is Boundary.PAIR else 0
        return microbatch.row_tokens + behind
