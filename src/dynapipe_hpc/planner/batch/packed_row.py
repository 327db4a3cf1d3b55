"""Rows of samples laid end to end, without padding between them."""

from collections.abc import Sequence
from itertools import accumulate

from dynapipe_hpc.data.microbatch import Layout, MicroBatch, Recompute
from dynapipe_hpc.data.sample import Sample
from dynapipe_hpc.planner.batch.row_length import padded


def packed_microbatch(
    samples: Sequence[Sample],
    recompute: Recompute,
    is_encoder_decoder: bool = False,
    *,
    row_tokens: int | None = None,
    target_tokens: int | None = None,
) -> MicroBatch:
    """Samples laid end to end in one row, or in one of inputs and one of targets.

    Args:
        samples: The samples, in order.
        recompute: Activation checkpointing mode.
        is_encoder_decoder: Whether there is a row of targets.
        row_tokens: Length up to which the row is filled; by default, the next multiple of 8.
        target_tokens: The same of the row of targets.
    """
    lengths = [sample.input_tokens + sample.target_tokens for sample in samples]
    target_offsets: tuple[int, ...] = ()
    if is_encoder_decoder:
        # Without input there still is a position for the target to attend to.
        lengths = [max(sample.input_tokens, 1) for sample in samples]
        target_offsets = (0, *accumulate([sample.target_tokens for sample in samples]))
    offsets = (0, *accumulate(lengths))
    return MicroBatch(
        rows=(tuple([sample.sample_id for sample in samples]),),
        row_tokens=padded(offsets[-1]) if row_tokens is None else row_tokens,
        recompute=recompute,
        target_tokens=_target_tokens(target_offsets) if target_tokens is None else target_tokens,
        layout=Layout.PACKED,
        offsets=offsets,
        target_offsets=target_offsets,
    )


def _target_tokens(target_offsets: Sequence[int]) -> int:
    return padded(target_offsets[-1]) if target_offsets else 0
