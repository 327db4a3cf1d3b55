"""Times of neighbouring samples, by hand and against the cost of every micro-batch."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from reproduce.authors.window_times import window_times_ms
from tests.examples.length_samples import samples_of
from tests.examples.linear_cost import linear_cost

from dynapipe_hpc.data.microbatch import Recompute
from dynapipe_hpc.data.sample import Sample
from dynapipe_hpc.planner.batch.microbatch_costs import microbatch_costs
from dynapipe_hpc.planner.batch.objective import bottleneck_ms
from dynapipe_hpc.planner.batch.row_length import padded_microbatch

COST = linear_cost(launch_ms=(1.0, 2.0), token_ms=(0.5, 0.25), recomputes=True)
BYTES_PER_TOKEN = 2


def test_longer_micro_batches_are_left_out_from_the_first_that_keeps_too_much() -> None:
    room_bytes = np.full(2, 4.0 * BYTES_PER_TOKEN * 16)
    times_ms = window_times_ms(
        samples_of([16, 8, 8]), COST, room_bytes, memory_share=0.5, recompute=Recompute.NONE
    )
    assert times_ms.tolist() == [
        [1 + 0.5 * 16, 1 + 0.5 * 32, np.inf],
        [1 + 0.5 * 8, 1 + 0.5 * 16, np.inf],
        [1 + 0.5 * 8, np.inf, np.inf],
    ]


def test_transient_memory_has_to_fit_but_is_not_kept() -> None:
    needed = 1.5 * BYTES_PER_TOKEN * 16  # half as much on top
    (sample,) = samples_of([16])
    for room_bytes, fits in ((needed, True), (needed - 1, False)):
        room = np.full(2, room_bytes)
        times_ms = window_times_ms([sample], COST, room, memory_share=1.0, recompute=Recompute.NONE)
        assert np.isfinite(times_ms).all() == fits


def test_rows_of_an_encoder_decoder_are_as_long_as_the_longest_on_either_side() -> None:
    cost = linear_cost(launch_ms=(1.0,), token_ms=(0.5,), has_targets=True)
    samples = [Sample(0, 16, 6), Sample(1, 8, 14)]  # a target's row has two tokens more
    times_ms = window_times_ms(
        samples, cost, np.full(1, 1e9), memory_share=1.0, recompute=Recompute.NONE
    )
    assert times_ms.tolist() == [
        [1 + 0.5 * (16 + 8), 1 + 0.5 * 2 * (16 + 16)],
        [1 + 0.5 * (8 + 16), np.inf],
    ]


@given(
    st.lists(st.integers(1, 64), min_size=1, max_size=12),
    st.integers(1, 400),
    st.sampled_from([Recompute.NONE, Recompute.FULL]),
)
def test_every_time_is_that_of_the_micro_batch(
    lengths: list[int], room_tokens: int, mode: Recompute
) -> None:
    samples = sorted(samples_of(lengths), key=lambda sample: -sample.tokens)
    room_bytes = np.full(2, float(BYTES_PER_TOKEN * room_tokens))
    times_ms = window_times_ms(samples, COST, room_bytes, memory_share=1.0, recompute=mode)
    for (first, k), time_ms in np.ndenumerate(times_ms):
        if np.isfinite(time_ms):
            together = padded_microbatch(samples[first : first + k + 1], mode)
            (expected_ms,) = bottleneck_ms(microbatch_costs([together], COST))
            assert time_ms == pytest.approx(expected_ms)
