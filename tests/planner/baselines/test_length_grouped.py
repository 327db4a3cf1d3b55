import pytest
from tests.examples.length_samples import samples_of
from tests.examples.linear_cost import LinearCost

from dynapipe_hpc.data.microbatch import PaddedRows
from dynapipe_hpc.data.sample import Sample
from dynapipe_hpc.plan.cluster import Cluster
from dynapipe_hpc.planner.baselines.length_grouped import LengthGrouped
from dynapipe_hpc.planner.batch.memory import DoesNotFitError

ROOMY = Cluster(n_stages=2, device_memory_bytes=10**9)


def test_each_group_is_as_long_as_its_longest_sample() -> None:
    found = LengthGrouped(2)(samples_of([3, 30, 16, 15, 7]), LinearCost(), ROOMY)
    assert found == [
        PaddedRows((1, 3), 32),
        PaddedRows((2, 4), 16),
        PaddedRows((0,), 8),
    ]


def test_inputs_come_before_targets_and_both_are_padded() -> None:
    samples = [Sample(i, n, m) for i, (n, m) in enumerate([(16, 6), (8, 30), (16, 14)])]
    found = LengthGrouped(2)(samples, LinearCost(has_targets=True), ROOMY)
    assert [(m.rows, m.row_tokens, m.target_tokens) for m in found] == [
        (((2,), (0,)), 16, 16),
        (((1,),), 8, 32),
    ]


def test_every_replica_has_a_group() -> None:
    replicas = Cluster(n_stages=2, n_replicas=3, device_memory_bytes=10**9)
    found = LengthGrouped(4)(samples_of([8, 40, 24, 16]), LinearCost(), replicas)
    assert [(m.sample_ids, m.row_tokens) for m in found] == [((1,), 40), ((2,), 24), ((3, 0), 16)]


def test_what_does_not_fit_is_named_with_the_way_out() -> None:
    small = Cluster(n_stages=2, device_memory_bytes=100)
    with pytest.raises(DoesNotFitError, match=r"lower planner\.batch\.rows_per_microbatch or"):
        LengthGrouped(2)(samples_of([30, 30]), LinearCost(), small)
