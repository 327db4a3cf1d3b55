"""The micro-batch shapes that a profile measures."""

from collections.abc import Iterator
from dataclasses import dataclass

from dynapipe_hpc.data.errors import InputError
from dynapipe_hpc.data.microbatch import MicroBatch
from dynapipe_hpc.experiment.config import ExperimentConfig
from dynapipe_hpc.planner.batch.row_length import padded

SHORTEST_ROW = 16
# Fewer would leave stages idle, so larger micro-batches are not worth measuring.
MICROBATCHES_PER_STAGE = 2


@dataclass(frozen=True, slots=True)
class ProfileGrid:
    """Rows and tokens per row in powers of two.

    Attributes:
        rows: Ascending.
        row_tokens: Ascending; the last is the longest row that a run uses.
        max_tokens: Padded tokens of the largest micro-batch; larger ones are not measured.
    """

    rows: tuple[int, ...]
    row_tokens: tuple[int, ...]
    max_tokens: int

    @classmethod
    def of(cls, config: ExperimentConfig, max_tokens: int | None = None) -> "ProfileGrid":
        """The shapes that a run may use.

        Args:
            config: The run.
            max_tokens: As the attribute. The default is a replica's share of the global batch
                cut into two micro-batches per stage, and the longest row at least.

        Raises:
            InputError: `max_tokens` is less than the longest row.
        """
        longest = padded(config.data.max_tokens)
        n_microbatches = config.cluster.n_plans * MICROBATCHES_PER_STAGE
        share = config.data.tokens_per_batch // n_microbatches
        limit = max(longest, share) if max_tokens is None else max_tokens
        if limit < longest:
            raise InputError(
                f"--microbatch-tokens is {limit}, but one row of data.max_tokens takes {longest}; "
                "raise the one or lower the other"
            )
        shortest = min(SHORTEST_ROW, longest)
        row_tokens = (*_powers_of_two(shortest, longest - 1), longest)
        return cls(tuple(_powers_of_two(1, max(1, limit // shortest))), row_tokens, limit)

    def microbatches(self) -> list[MicroBatch]:
        """Those within the limit, smallest first; a row holds sample i of length i of the grid."""
        every = [
            MicroBatch(((sample,),) * n_rows, tokens)
            for n_rows in self.rows
            for sample, tokens in enumerate(self.row_tokens)
            if n_rows * tokens <= self.max_tokens
        ]
        return sorted(every, key=lambda microbatch: microbatch.padded_tokens)


def _powers_of_two(first: int, last: int) -> Iterator[int]:
    """`first` and its doubles, up to `last`."""
    while first <= last:
        yield first
        first *= 2
