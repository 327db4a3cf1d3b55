"""Boundary between two neighbouring stages: the tensor that travels across it."""

from enum import IntEnum

from dynapipe_hpc.data.microbatch import MicroBatch


class Boundary(IntEnum):
    """Kind of the tensor that a stage sends to the next one, which returns its gradient.

    ROWS: Activation of a micro-batch's rows; in and right after an encoder, of the encoder's rows.
    PAIR: Output of the encoder and activation of the decoder, concatenated along tokens.
    """

    ROWS = 0
    PAIR = 1

    def tokens_of(self, microbatch: MicroBatch) -> int:
        """Number of tokens per row of the tensor, for a micro-batch."""
        decoder_tokens = microbatch.target_tokens if self is Boundary.PAIR else 0
        return microbatch.row_tokens + decoder_tokens
