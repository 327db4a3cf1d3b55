"""Boundary between two neighbouring stages: the tensor that travels across it."""

from enum import IntEnum

from dynapipe_hpc.data.microbatch import MicroBatch


class Boundary(IntEnum):
    """The tensor that a stage sends to the next one, which returns its gradient.

    ROWS: Activation of a micro-batch's rows; inside or after an encoder, of the encoder's rows.
    PAIR: Encoder's output and decoder's activation, concatenated along tokens.
    """

    ROWS = 0
    PAIR = 1

    def tokens_of(self, microbatch: MicroBatch) -> int:
        """Number of tokens per row of the tensor that travels."""
        decoder_tokens = microbatch.target_tokens if self is Boundary.PAIR else 0
        return microbatch.row_tokens + decoder_tokens
