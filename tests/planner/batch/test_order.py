import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from tests.examples.linear_cost import linear_cost, samples_of

from dynapipe_hpc.data.microbatch import MicroBatch, PaddedRows
from dynapipe_hpc.data.sample import Sample
from dynapipe_hpc.plan.cluster import Cluster
from dynapipe_hpc.planner.batch.memory import DoesNotFitError
from dynapipe_hpc.planner.batch.order import (
    TooFewMicroBatchesError,
    balance_replicas,
    halved,
    order_samples,
    orders,
)
from dynapipe_hpc.planner.batch.price_windows import price_windows

MANY = np.random.default_rng(0).integers(1, 2000, 64).tolist()


@given(st.lists(st.integers(1, 2000), min_size=1, max_size=130))
@example(MANY)
def test_halves_and_quarters_of_an_order_have_about_as_many_tokens(lengths: list[int]) -> None:
    samples = order_samples([Sample(i, n - 1, 1) for i, n in enumerate(lengths)])
    ordered = halved(samples)
    assert sorted(s.sample_id for s in ordered) == list(range(len(lengths)))
    parts = [[sample.tokens for sample in ordered]]
    for _ in range(2):
        halves = []
        for part in parts:
            n = len(part) // 2 + (len(part) % 4 == 1)
            halves += [part[:n], part[n:]]
            apart = abs(sum(part[:n]) - sum(part[n:]))
            assert apart <= (0.2 if lengths is MANY else 1.0) * max(part, default=0)
        parts = halves


PAIRS = st.lists(st.tuples(st.integers(0, 99), st.integers(1, 99)), min_size=1, max_size=30)


@given(pairs=PAIRS)
def test_pairs_go_through_bands_of_inputs_in_which_targets_fall_and_rise_in_turn(
    pairs: list[tuple[int, int]],
) -> None:
    samples = [Sample(i, *pair) for i, pair in enumerate(pairs)]
    longest = max(padded(inputs) for inputs, _ in pairs)
    both = orders(samples, is_encoder_decoder=True)
    assert orders(samples[::-1], is_encoder_decoder=True) == both
    for n_bands, found in zip((32, 16), both, strict=True):
        expected: list[int] = []
        for band in range(n_bands):
            shortest = longest - (longest + 1) * (band + 1) / n_bands
            held = [
                (padded(targets) * (1 if band % 2 else -1), -inputs, -targets, i)
                for i, (inputs, targets) in enumerate(pairs)
                if shortest < padded(inputs) <= shortest + (longest + 1) / n_bands
            ]
            expected += [i for *_, i in sorted(held)]
        assert [sample.sample_id for sample in found] == expected


def padded(tokens: int) -> int:
    """A row has a position at least."""
    return -(-max(tokens, 1) // 8) * 8


def test_a_sample_that_no_stage_can_hold_is_named_with_the_way_out() -> None:
    samples = order_samples(samples_of([10, 500]))
    cost = linear_cost(token_bytes=2.0, model_bytes=100.0)
    with pytest.raises(
        DoesNotFitError,
        match=r"sample 1 \(499 input \+ 1 target tokens\) on its own needs 1,612 bytes on "
        r"stage 0, of which 100 for the model, but cluster\.device_memory_bytes is 1,000; "
        r"raise it, add stages, allow .full. in planner\.cost\.recompute, "
        r"or cut long samples with data\.max_tokens",
    ):
        price_windows(samples, cost, Cluster(n_stages=2, device_memory_bytes=1000))


WORK_IS_TOKENS = linear_cost(launch_ms=(0.0, 0.0), token_ms=(0.5, 1.0))


def of_work(work_ms: list[int]) -> list[MicroBatch]:
    return [PaddedRows((i,), ms) for i, ms in enumerate(work_ms)]


def differenced(work_ms: list[int], n: int) -> list[list[int]]:
    """The largest differencing method, with idle replicas written out."""
    partial = [sorted([(work, [i])] + [(0, [])] * (n - 1))[::-1] for i, work in enumerate(work_ms)]
    while len(partial) > 1:
        partial.sort(key=lambda loads: (loads[-1][0] - loads[0][0], loads))
        a, b, *rest = partial
        joined = [(x + y, i + j) for (x, i), (y, j) in zip(a, reversed(b), strict=True)]
        partial = [sorted(joined)[::-1], *rest]
    return sorted(sorted(indices) for _, indices in partial[0])


@given(st.lists(st.integers(1, 50), min_size=1, max_size=30), st.integers(1, 30))
def test_replicas_that_are_idle_meanwhile_change_nothing(work_ms: list[int], n: int) -> None:
    if len(work_ms) >= n:
        found = balance_replicas(of_work(work_ms), WORK_IS_TOKENS, n)
        assert found == differenced(work_ms, n)


def test_replicas_without_work_are_an_error_with_a_way_out() -> None:
    with pytest.raises(
        TooFewMicroBatchesError,
        match=r"has 2 micro-batches for 3 replicas, .* lower cluster\.n_replicas or raise "
        r"data\.tokens_per_batch$",
    ):
        balance_replicas(of_work([3, 4]), WORK_IS_TOKENS, 3)
