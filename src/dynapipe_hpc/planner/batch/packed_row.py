"""Rows of samples laid end to end, without padding between them."""

from collections.abc import Sequence
from itertools import accumulate

from dynapipe_hpc.data.microbatch import Layout, MicroBatch, Recompute
from dynapipe_hpc.data.sample import Sample
from dynapipe_hpc.planner.batch.row_length import padded


def packed_microbatch(samples: Sequence[Sample], recompute: Recompute) -> MicroBatch:
    """One row of samples laid end to end, filled up to a multiple of 8 tokens; decoder-only."""
    lengths = [sample.input_tokens + sample.target_tokens for sample in samples]
    offsets = (0, *accumulate(lengths))
    return MicroBatch(
        rows=(tuple([sample.sample_id for sample in samples]),),
        row_tokens=padded(offsets[-1]),
        recompute=recompute,
        layout=Layout.PACKED,
        offsets=offsets,
    )
