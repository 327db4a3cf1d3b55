"""Contract of every batch rule, see `BatchRule`."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.examples.length_samples import samples_of
from tests.examples.linear_cost import LinearCost

from dynapipe_hpc.plan.cluster import Cluster
from dynapipe_hpc.planner.baselines.authors.authors_batches import AuthorsBatches
from dynapipe_hpc.planner.baselines.fixed_rows import DensePacking, NaivePadding
from dynapipe_hpc.planner.baselines.length_grouped import LengthGrouped
from dynapipe_hpc.planner.baselines.token_budget import TokenBudget
from dynapipe_hpc.planner.batch.batch_rule import BatchRule
from dynapipe_hpc.planner.batch.memory import DoesNotFitError, NotMeasuredError

RULES: dict[str, BatchRule] = {
    "authors": AuthorsBatches(interval_ms=0),  # coarse grids have an error of their own
    "dense packing": DensePacking(row_tokens=64, rows_per_microbatch=2),
    "naive padding": NaivePadding(rows_per_microbatch=3),
    "length grouped": LengthGrouped(rows_per_microbatch=3),
    "token budget": TokenBudget(tokens_per_microbatch=128),
}

COST = LinearCost(launch_ms=(1.0, 0.5, 2.0), token_ms=(0.01, 0.02, 0.01), model_bytes=10.0)
BYTES_PER_TOKEN = 3  # LinearCost: 2 stored and at most 1 transient

every_rule = pytest.mark.parametrize("rule", RULES.values(), ids=RULES.keys())
lengths = st.lists(st.integers(1, 64), min_size=1, max_size=30)


@every_rule
@given(lengths=lengths, n_replicas=st.integers(1, 3))
def test_every_sample_is_there_once(rule: BatchRule, lengths: list[int], n_replicas: int) -> None:
    cluster = Cluster(n_replicas=n_replicas, n_stages=3, device_memory_bytes=10**9)
    microbatches = rule(samples_of(lengths), COST, cluster)
    ids = [sample_id for m in microbatches for sample_id in m.sample_ids]
    assert sorted(ids) == list(range(len(lengths)))
    assert all(row for m in microbatches for row in m.rows)


@every_rule
@given(lengths=lengths)
def test_no_row_is_longer_than_its_micro_batch_s(rule: BatchRule, lengths: list[int]) -> None:
    cluster = Cluster(n_stages=3, device_memory_bytes=10**9)
    for m in rule(samples_of(lengths), COST, cluster):
        assert m.row_tokens % 8 == 0
        assert max(sum(lengths[i] for i in row) for row in m.rows) <= m.row_tokens


@every_rule
@given(lengths=lengths, room_tokens=st.integers(1, 300))
def test_micro_batches_fit_or_an_error_says_which_does_not(
    rule: BatchRule, lengths: list[int], room_tokens: int
) -> None:
    memory_bytes = 10 + BYTES_PER_TOKEN * room_tokens
    cluster = Cluster(n_stages=3, device_memory_bytes=memory_bytes)
    try:
        microbatches = rule(samples_of(lengths), COST, cluster)
    except DoesNotFitError as error:
        assert f"cluster.device_memory_bytes is {memory_bytes:,}" in str(error)
    else:
        assert all(m.padded_tokens <= room_tokens for m in microbatches)


@every_rule
def test_what_the_cost_model_does_not_know_is_an_error_of_its_own(rule: BatchRule) -> None:
    cluster = Cluster(n_stages=3, device_memory_bytes=10**9)
    cost = LinearCost(launch_ms=(1.0,) * 3, token_ms=(0.01,) * 3, longest_row=32)
    with pytest.raises(NotMeasuredError, match="outside of what the cost model knows"):
        rule(samples_of([5, 64]), cost, cluster)


@every_rule
def test_equal_input_gives_equal_micro_batches(rule: BatchRule) -> None:
    cluster = Cluster(n_stages=3, device_memory_bytes=10**9)
    samples = samples_of([7, 64, 33, 33, 9, 1, 50])
    assert rule(samples, COST, cluster) == rule(samples, COST, cluster)
