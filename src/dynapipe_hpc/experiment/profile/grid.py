"""The micro-batch shapes that a profile measures."""

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import product

from dynapipe_hpc.data.errors import InputError
from dynapipe_hpc.data.microbatch import PackedRow, PaddedRows
from dynapipe_hpc.experiment.config import ExperimentConfig
from dynapipe_hpc.planner.batch.row_length import padded

MIN_ROW = 16
# Fewer micro-batches would leave stages idle, so larger ones are not worth measuring.
MICROBATCHES_PER_STAGE = 2
# Twice as many rows, each twice as long: points between which the shortest packed row is looked up.
TOKENS_OF_POINTS = 4


@dataclass(frozen=True, slots=True)
class ProfileGrid:
    """Grid of micro-batch shapes: rows and tokens per row in powers of two, ascending.

    The last length is the longest row of a run; micro-batches of more than `max_tokens` padded
    tokens are not measured. Target rows, if there are any, have the same lengths.
    """

    rows: tuple[int, ...]
    row_tokens: tuple[int, ...]
    max_tokens: int
    has_target_rows: bool = False

    @classmethod
    def from_config(cls, config: ExperimentConfig, max_tokens: int | None = None) -> "ProfileGrid":
        """The shapes that a run may use.

        The default limit is a replica's share of the global batch, cut into two micro-batches per
        stage, but at least the longest row, and at least four times the rows' token multiple; in
        an encoder-decoder model these minima include targets of the same length.
        """
        has_target_rows = config.model.has_target_rows
        longest = padded(config.data.max_tokens, config.planner.document_multiple)
        n_sides = 2 if has_target_rows else 1
        least = n_sides * longest
        of_shortest = n_sides * TOKENS_OF_POINTS * config.planner.token_multiple
        n_microbatches = config.cluster.n_plans * MICROBATCHES_PER_STAGE
        share = config.data.tokens_per_batch // n_microbatches
        limit = max(least, of_shortest, share) if max_tokens is None else max_tokens
        if limit < least:
            raise InputError(
                f"--microbatch-tokens is {limit}, but one row of data.max_tokens takes {least}; "
                "raise --microbatch-tokens or lower data.max_tokens"
            )
        shortest = min(MIN_ROW, longest)
        shorter = _powers_of_two(shortest, longest - 1)
        row_tokens = (*shorter, longest)
        rows = tuple(_powers_of_two(1, max(1, limit // shortest)))
        return cls(rows, row_tokens, limit, has_target_rows)

    def __str__(self) -> str:
        """The grid in one line; different grids have different lines."""
        rows, lengths = (",".join(map(str, sizes)) for sizes in (self.rows, self.row_tokens))
        return f"{rows} rows of {lengths} tokens, up to {self.max_tokens}"

    @property
    def samples(self) -> list[tuple[int, int]]:
        """Input and target tokens of the samples that fill the rows, by sample id.

        Rows of a decoder-only model are full. Padded rows of an encoder have some padding, as in a
        run, so that attention has to mask it; every input length is paired with every target
        length. After these samples come those that fill packed rows.
        """
        if not self.has_target_rows:
            return [(tokens // 2, tokens - tokens // 2) for tokens in self.row_tokens]
        pairs = list(product(self.row_tokens, self.row_tokens))
        return [(n - 1, m) for n, m in pairs] + pairs

    def microbatches(self) -> list[PaddedRows]:
        """Micro-batches within the limit, smallest first.

        For encoder-decoders, targets are as long as inputs; the limit ignores them.
        """
        n = len(self.row_tokens)
        every = [
            PaddedRows((i * n + i,) * n_rows, tokens, target_tokens=tokens)
            if self.has_target_rows
            else PaddedRows((i,) * n_rows, tokens)
            for n_rows in self.rows
            for i, tokens in enumerate(self.row_tokens)
            if n_rows * tokens <= self.max_tokens
        ]
        return sorted(every, key=lambda microbatch: microbatch.padded_tokens)

    def pairs(self) -> list[PaddedRows]:
        """Micro-batches of an encoder-decoder model: all pairs of lengths, smallest first."""
        n = len(self.row_tokens)
        every = [
            PaddedRows((i * n + j,) * n_rows, tokens, target_tokens=target_tokens)
            for n_rows in self.rows
            for i, tokens in enumerate(self.row_tokens)
            for j, target_tokens in enumerate(self.row_tokens)
            if n_rows * (tokens + target_tokens) <= self.max_tokens
        ]
        return sorted(every, key=lambda microbatch: microbatch.padded_tokens)

    def end_to_end(self, rows: PaddedRows) -> PackedRow:
        """The rows of a micro-batch, one after the other in a single row."""
        n_before = len(self.row_tokens) ** 2 if self.has_target_rows else 0
        places = range(rows.n_rows + 1)
        offsets = tuple(i * rows.row_tokens for i in places)
        targets = tuple(i * rows.target_tokens for i in places) if self.has_target_rows else ()
        return PackedRow(
            tuple(n_before + i for i in rows.sample_ids),
            offsets[-1],
            target_tokens=rows.n_rows * rows.target_tokens,
            offsets=offsets,
            target_offsets=targets,
        )


def _powers_of_two(first: int, last: int) -> Iterator[int]:
    while first <= last:
        yield first
        first *= 2
