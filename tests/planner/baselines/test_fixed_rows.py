import pytest
from tests.examples.length_samples import samples_of
from tests.examples.linear_cost import LinearCost

from dynapipe_hpc.data.microbatch import DenseRows, MicroBatch, PaddedRows
from dynapipe_hpc.data.sample import Sample
from dynapipe_hpc.plan.cluster import Cluster
from dynapipe_hpc.planner.baselines.fixed_rows import DensePacking, NaivePadding
from dynapipe_hpc.planner.baselines.token_budget import TokenBudget
from dynapipe_hpc.planner.batch.batch_rule import BatchRule
from dynapipe_hpc.planner.batch.memory import DoesNotFitError, NotMeasuredError
from dynapipe_hpc.planner.batch.replicas import balance_replicas

ROOMY = Cluster(n_stages=2, device_memory_bytes=10**9)


def dense(rows: tuple[tuple[int, ...], ...], row_tokens: int, target_tokens: int = 0) -> MicroBatch:
    return DenseRows(rows, row_tokens, target_tokens=target_tokens)


def test_the_longest_samples_come_first_and_each_goes_where_there_is_room() -> None:
    samples = samples_of([10, 4, 3, 9, 1, 16, 2])
    assert DensePacking(row_tokens=16, rows_per_microbatch=2)(samples, LinearCost(), ROOMY) == [
        dense(((5,), (0, 1, 6)), 16),
        dense(((3, 2, 4),), 16),
    ]


def test_rows_are_as_long_as_the_longest_sample_of_the_iteration() -> None:
    found = DensePacking(0, 1)(samples_of([20, 8, 17, 3]), LinearCost(), ROOMY)
    assert found == [dense(((0, 3),), 24), dense(((2,),), 24), dense(((1,),), 24)]
    (longer,) = DensePacking(60, 1)(samples_of([20, 8, 17, 3]), LinearCost(), ROOMY)
    assert longer == dense(((0, 2, 1, 3),), 64)


def test_a_global_batch_of_full_rows_needs_no_more_rows_than_it_fills() -> None:
    lengths = [1000, 40, 1048, 2008, 900, 100, 1900, 1100, 48, 948]
    samples = samples_of(lengths)
    found = DensePacking(2048, 1)(samples, LinearCost(), ROOMY)
    assert len(found) == -(-sum(lengths) // 2048) == 5


def test_packing_leaves_what_is_left_over_to_the_last_micro_batch() -> None:
    found = DensePacking(row_tokens=8, rows_per_microbatch=2)(
        samples_of([8, 8, 8]), LinearCost(), ROOMY
    )
    assert [m.rows for m in found] == [((0,), (1,)), ((2,),)]


BASELINES: dict[str, BatchRule] = {
    "dense packing": DensePacking(64, 2),
    "naive padding": NaivePadding(8),
    "token budget": TokenBudget(10_000),
}


@pytest.mark.parametrize("name", BASELINES)
@pytest.mark.parametrize("n_replicas", [1, 3, 4, 6])
def test_every_replica_has_a_micro_batch(name: str, n_replicas: int) -> None:
    cluster = Cluster(n_replicas=n_replicas, n_stages=2, device_memory_bytes=10**9)
    found = BASELINES[name](samples_of([8, 30, 5, 7, 2, 11]), LinearCost(), cluster)
    assert len(balance_replicas(found, LinearCost(), n_replicas)) == n_replicas
    assert sorted(i for m in found for i in m.sample_ids) == list(range(6))


def test_of_fewer_samples_than_replicas_each_is_alone() -> None:
    cluster = Cluster(n_replicas=4, n_stages=2, device_memory_bytes=10**9)
    for rule in BASELINES.values():
        assert len(rule(samples_of([8, 30, 5]), LinearCost(), cluster)) == 3


def test_naive_padding_pads_all_to_the_longest_in_order_of_arrival() -> None:
    samples = samples_of([3, 30, 5, 7, 2])
    assert NaivePadding(rows_per_microbatch=2)(samples, LinearCost(), ROOMY) == [
        PaddedRows((0, 1), 32),
        PaddedRows((2, 3), 32),
        PaddedRows((4,), 32),
    ]


def test_a_micro_batch_that_does_not_fit_is_named_with_the_way_out() -> None:
    small = Cluster(n_stages=2, device_memory_bytes=100)
    with pytest.raises(
        DoesNotFitError,
        match=r"a micro-batch of 2 x 32 tokens needs 192 bytes on stage 0, .* is 100; "
        r"raise it, add stages, allow .full. in planner\.cost\.recompute, "
        r"or lower planner\.batch\.rows_per_microbatch",
    ):
        NaivePadding(2)(samples_of([3, 30]), LinearCost(), small)
    with pytest.raises(NotMeasuredError, match="2 x 32 tokens lies outside of what"):
        NaivePadding(2)(samples_of([3, 30]), LinearCost(longest_row=16), small)


TWO_SIDED = LinearCost(has_targets=True)


def test_a_sample_goes_where_both_of_its_sides_have_room() -> None:
    sizes = [(10, 4), (4, 3), (1, 9), (9, 1), (1, 6)]
    samples = [Sample(i, *tokens) for i, tokens in enumerate(sizes)]
    assert DensePacking(row_tokens=15, rows_per_microbatch=2)(samples, TWO_SIDED, ROOMY) == [
        dense(((0, 2, 1), (3, 4)), 16, target_tokens=16),
    ]


def test_rows_of_targets_have_a_length_of_their_own() -> None:
    samples = [Sample(i, 20, 3) for i in range(4)]
    assert {m.target_tokens for m in DensePacking(0, 1)(samples, TWO_SIDED, ROOMY)} == {8}
    (found,) = DensePacking(80, 1, target_tokens=12)(samples, TWO_SIDED, ROOMY)
    assert found == dense(((0, 1, 2, 3),), 80, target_tokens=16)


def test_naive_padding_pads_inputs_and_targets_to_the_longest_of_each() -> None:
    samples = [Sample(0, 20, 3), Sample(1, 1, 9), Sample(2, 0, 1)]
    assert NaivePadding(rows_per_microbatch=2)(samples, TWO_SIDED, ROOMY) == [
        PaddedRows((0, 1), 24, target_tokens=16),
        PaddedRows((2,), 24, target_tokens=16),
    ]
