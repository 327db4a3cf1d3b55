import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.examples.length_samples import samples_of
from tests.examples.linear_cost import changed, linear_cost, packed_apart
from tests.examples.stage_costs import with_columns

from dynapipe_hpc.data.microbatch import PackedRow
from dynapipe_hpc.data.sample import Sample
from dynapipe_hpc.plan.cluster import Cluster
from dynapipe_hpc.planner.baselines.baseline import (
    packed_balanced,
    packed_work,
    pair_work,
    small_at_both_ends,
)
from dynapipe_hpc.planner.cost.cost_model import CostModel, Shapes, StageCosts

ROOMY = Cluster(n_stages=2, device_memory_bytes=10**9)
TWO = Cluster(n_replicas=2, n_stages=2, device_memory_bytes=10**9)


def pair_cost(pair_ms: float = 0.0) -> CostModel:
    """Forward and backward times of 1 ms per token and of a time per pair of tokens."""

    def change(shapes: Shapes, costs: StageCosts) -> StageCosts:
        n_rows, row_tokens, *_ = shapes
        pass_ms = (n_rows * (row_tokens + pair_ms * row_tokens**2) / 2)[:, None]
        return with_columns(costs, forward_ms=pass_ms, backward_ms=pass_ms)

    return changed(linear_cost(), change)


def test_work_of_two_sides_is_what_a_second_row_adds_on_all_stages() -> None:
    samples = [Sample(0, 13, 8), Sample(1, 0, 40), Sample(2, 64, 1)]
    launch_ms, token_ms = (5.0, 1.0), (0.25, 0.5)
    cost = linear_cost(launch_ms, token_ms, has_targets=True)
    np.testing.assert_allclose(pair_work(samples, cost), [18.0, 36.0, 54.0])
    unknown = linear_cost(launch_ms, token_ms, has_targets=True, longest_row=20)
    assert pair_work(samples, unknown).tolist() == [21, 41, 65]


def test_work_is_told_from_pairs_by_as_many_tokens_in_shorter_rows() -> None:
    found = packed_work(samples_of([64, 10, 1]), pair_cost(pair_ms=0.5))
    assert found == pytest.approx([64 + 0.5 * 64**2, 10 + 0.5 * 10**2, 1.5])


def test_work_is_that_of_packed_rows() -> None:
    samples = samples_of([64, 10, 1])
    expected = packed_work(samples, pair_cost(pair_ms=0.5))
    assert packed_work(samples, packed_apart(pair_cost(), pair_cost(0.5))) == pytest.approx(
        expected
    )


@pytest.mark.parametrize(
    "cost", [linear_cost(launch_ms=(3.0, 5.0)), linear_cost(longest_row=50)], ids=["launch", "hole"]
)
def test_without_pairs_and_where_nothing_was_measured_work_is_tokens(cost: CostModel) -> None:
    tokens = [64, 10, 1]
    found = packed_work(samples_of(tokens), cost)
    assert found / found[-1] == pytest.approx(tokens)


def test_work_of_a_preference_pair_is_of_tokens_that_see_each_other() -> None:
    pair = Sample(0, 20, 30, rejected_tokens=14)
    found = packed_work([pair], pair_cost(pair_ms=0.5))
    seen = 50 * 50 + 2 * 14 * 20 + 14 * 14
    assert found == pytest.approx([64 + 0.5 * seen])


def test_a_long_sample_has_as_much_work_as_many_more_tokens_of_short_ones() -> None:
    samples = samples_of([32, 16, 16, 16, 16])

    def sizes(cost: CostModel) -> list[int]:
        (found,) = packed_balanced(samples, cost, ROOMY, 48)
        return sorted(len(m.sample_ids) for m in found)

    assert sizes(pair_cost()) == [2, 3]  # 48 tokens each
    assert sizes(pair_cost(pair_ms=1e6)) == [1, 4]  # 1,024 pairs each


def test_every_replica_has_as_many_micro_batches_as_the_one_with_the_most_tokens_needs() -> None:
    found = packed_balanced(samples_of([48, 8, 8, 8, 8, 8]), linear_cost(), TWO, 44)
    # 48 tokens need two, which the one sample of that replica cannot form.
    assert found[0] == [PackedRow((0,), 48, offsets=(0, 48))]
    assert [m.row_tokens for m in found[1]] == [24, 16]


@pytest.mark.parametrize(("tokens", "n"), [(1000, 1), (64, 1), (63, 2), (32, 2), (31, 3), (1, 8)])
def test_there_are_as_many_micro_batches_as_budgets_in_the_tokens(tokens: int, n: int) -> None:
    (found,) = packed_balanced(samples_of([8] * 8), linear_cost(), ROOMY, tokens)
    assert len(found) == n


@given(st.lists(st.integers(1, 50), min_size=1, max_size=12, unique=True))
def test_work_rises_to_the_largest_and_falls_after_it(work: list[int]) -> None:
    order = small_at_both_ends(np.array(work, float))
    assert sorted(order) == list(range(len(work)))
    ordered = [work[i] for i in order]
    top = ordered.index(max(ordered))
    assert ordered[: top + 1] == sorted(ordered[: top + 1])
    assert ordered[top:] == sorted(ordered[top:], reverse=True)
    assert abs(top - (len(work) - 1) / 2) <= 0.5
