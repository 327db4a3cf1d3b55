import pytest
from tests.oracles.length_samples import samples_of
from tests.oracles.linear_cost import LinearCost

from dynapipe_hpc.data.errors import InputError
from dynapipe_hpc.data.microbatch import MicroBatch
from dynapipe_hpc.data.sample import Sample
from dynapipe_hpc.plan.cluster import Cluster
from dynapipe_hpc.planner.batch.baselines import DensePacking, NaivePadding
from dynapipe_hpc.planner.batch.memory import DoesNotFitError, NotMeasuredError

ROOMY = Cluster(n_stages=2, device_memory_bytes=10**9)


def test_packing_starts_a_row_where_a_sample_no_longer_fits_and_never_goes_back() -> None:
    samples = samples_of([10, 4, 3, 9, 1, 16, 2])
    assert DensePacking(row_tokens=16, rows_per_microbatch=2)(samples, LinearCost(), ROOMY) == [
        MicroBatch(((0, 1), (2, 3, 4)), 16),
        MicroBatch(((5,), (6,)), 16),
    ]


def test_packing_leaves_what_is_left_over_to_the_last_micro_batch() -> None:
    found = DensePacking(row_tokens=8, rows_per_microbatch=2)(
        samples_of([8, 8, 8]), LinearCost(), ROOMY
    )
    assert [m.rows for m in found] == [((0,), (1,)), ((2,),)]


def test_a_sample_longer_than_a_packed_row_is_named() -> None:
    with pytest.raises(InputError, match=r"sample 1 has 17 tokens, but a row holds 16; cut long"):
        DensePacking(16, 1)(samples_of([3, 17]), LinearCost(), ROOMY)


def test_naive_padding_pads_all_to_the_longest_in_order_of_arrival() -> None:
    samples = samples_of([3, 30, 5, 7, 2])
    assert NaivePadding(rows_per_microbatch=2)(samples, LinearCost(), ROOMY) == [
        MicroBatch(((0,), (1,)), 32),
        MicroBatch(((2,), (3,)), 32),
        MicroBatch(((4,),), 32),
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


def test_packing_fills_rows_of_both_sides_until_one_of_them_is_full() -> None:
    sizes = [(10, 4), (4, 3), (1, 9), (9, 1), (1, 6)]
    samples = [Sample(i, *tokens) for i, tokens in enumerate(sizes)]
    assert DensePacking(row_tokens=15, rows_per_microbatch=2)(samples, TWO_SIDED, ROOMY) == [
        MicroBatch(((0, 1), (2, 3)), 16, target_tokens=16),
        MicroBatch(((4,),), 16, target_tokens=16),
    ]


def test_a_target_longer_than_a_packed_row_is_named() -> None:
    with pytest.raises(InputError, match=r"sample 0 has 17 tokens, but a row holds 16; cut long"):
        DensePacking(16, 1)([Sample(0, 3, 17)], TWO_SIDED, ROOMY)


def test_naive_padding_pads_inputs_and_targets_to_the_longest_of_each() -> None:
    samples = [Sample(0, 20, 3), Sample(1, 1, 9), Sample(2, 0, 1)]
    assert NaivePadding(rows_per_microbatch=2)(samples, TWO_SIDED, ROOMY) == [
        MicroBatch(((0,), (1,)), 24, target_tokens=16),
        MicroBatch(((2,),), 24, target_tokens=16),
    ]
