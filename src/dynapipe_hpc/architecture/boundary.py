"""Boundary between two neighbouring stages: the tensor that travels across it."""

from enum import IntEnum

from dynapipe_hpc.data.microbatch import MicroBatch


class Boundary(IntEnum):
    """Kind of the tensor that a stage sends to the next one, which returns its gradient.

    ROWS: Activation of a micro-batch's rows; in and right after an encoder, of the encoder's rows.
    PAIR: Output of the encoder and activation of the decoder, concatenated along tokens.

    Where shards divide the tokens of the residual stream, each sends and receives its own part.
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
            (rows, tokens, width) if tokens are not divided, otherwise (tokens of a shard, width).
        """
        sides = [microbatch.row_tokens]
        if self is Boundary.PAIR:
            sides.append(microbatch.target_tokens)
        if n_parts == 1:
            return (microbatch.n_rows, sum(sides), width)
        return (sum(-(-microbatch.n_rows * tokens // n_parts) for tokens in sides), width)
