import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.examples.linear_cost import linear_cost

from dynapipe_hpc.data.microbatch import MicroBatch, PaddedRows
from dynapipe_hpc.planner.batch.replicas import TooFewMicroBatchesError, balance_replicas

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
