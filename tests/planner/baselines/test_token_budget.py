import pytest
from tests.examples.length_samples import samples_of
from tests.examples.linear_cost import LinearCost

from dynapipe_hpc.data.microbatch import PaddedRows
from dynapipe_hpc.data.sample import Sample
from dynapipe_hpc.plan.cluster import Cluster
from dynapipe_hpc.planner.baselines.token_budget import TokenBudget
from dynapipe_hpc.planner.batch.memory import DoesNotFitError

ROOMY = Cluster(n_stages=2, device_memory_bytes=10**9)


def test_samples_of_alike_length_fill_micro_batches_up_to_the_budget() -> None:
    found = TokenBudget(32)(samples_of([3, 30, 16, 15, 7, 2, 8]), LinearCost(), ROOMY)
    assert [(m.row_tokens, m.n_rows) for m in found] == [(32, 1), (16, 2), (8, 4)]
    assert all(m.padded_tokens <= 32 for m in found)


def test_a_sample_beyond_the_budget_is_alone() -> None:
    found = TokenBudget(16)(samples_of([40, 8, 8]), LinearCost(), ROOMY)
    assert found == [PaddedRows((0,), 40), PaddedRows((2, 1), 8)]


def test_both_sides_count() -> None:
    samples = [Sample(i, n, m) for i, (n, m) in enumerate([(16, 6), (16, 30), (8, 6)])]
    found = TokenBudget(48)(samples, LinearCost(has_targets=True), ROOMY)
    assert [(m.row_tokens, m.target_tokens, m.n_rows) for m in found] == [(16, 32, 1), (16, 8, 2)]


def test_what_does_not_fit_is_named_with_the_way_out() -> None:
    small = Cluster(n_stages=2, device_memory_bytes=100)
    with pytest.raises(DoesNotFitError, match=r"lower planner\.batch\.tokens_per_microbatch or"):
        TokenBudget(64)(samples_of([30, 30]), LinearCost(), small)
