"""Rows of samples laid end to end, without padding between them."""

from collections.abc import Sequence
from itertools import accumulate

from dynapipe_hpc.data.microbatch import Branch, PackedRow, Recompute
from dynapipe_hpc.data.sample import Sample
from dynapipe_hpc.planner.batch.row_length import padded


def packed_microbatch(
    samples: Sequence[Sample],
    recompute: Recompute,
    is_encoder_decoder: bool = False,
    *,
    row_tokens: int = 0,
    target_tokens: int = 0,
) -> PackedRow:
    """Samples laid end to end in one row, or in one row of inputs and one row of targets.

    `samples`: The samples, in order. `row_tokens`: Least length of the row, which is filled up to
    the next multiple of 8 anyway.
    """
    lengths = [sample.tokens for sample in samples]
    target_offsets: tuple[int, ...] = ()
    if is_encoder_decoder:
        # Without input there still is a position for the target to attend to.
        lengths = [max(sample.input_tokens, 1) for sample in samples]
        target_offsets = (0, *accumulate([sample.target_tokens for sample in samples]))
    offsets = (0, *accumulate(lengths))
    return PackedRow(
        sample_ids=tuple([sample.sample_id for sample in samples]),
        row_tokens=max(padded(offsets[-1]), row_tokens),
        recompute=recompute,
        target_tokens=max(padded(target_offsets[-1]), target_tokens) if is_encoder_decoder else 0,
        offsets=offsets,
        target_offsets=target_offsets,
        branches=_branches(samples, offsets),
    )


def _branches(samples: Sequence[Sample], offsets: Sequence[int]) -> tuple[Branch, ...]:
    """Branches of a row of preference pairs; none in other rows."""
    return tuple(
        Branch(begin + sample.input_tokens + sample.target_tokens, sample.input_tokens)
        for sample, begin in zip(samples, offsets, strict=False)
        if sample.is_pair
    )
