from tests.examples.length_samples import samples_of
from tests.examples.linear_cost import LinearCost

from dynapipe_hpc.data.microbatch import PackedRow
from dynapipe_hpc.plan.cluster import Cluster
from dynapipe_hpc.planner.baselines.packed.packed_first_fit import PackedFirstFit

ROOMY = Cluster(n_stages=2, device_memory_bytes=10**9)


def test_each_sample_longest_first_goes_into_the_first_row_with_room() -> None:
    (found,) = PackedFirstFit(20)(samples_of([3, 12, 9, 8, 2, 40, 7, 25]), LinearCost(), ROOMY)
    # 40 and 25 are longer than a row; 12 and 8 fill one; 9, 7 and 3 leave 1; 2 opens another.
    assert found == [
        PackedRow((5,), 40, offsets=(0, 40)),
        PackedRow((7,), 32, offsets=(0, 25)),
        PackedRow((1, 3), 24, offsets=(0, 12, 20)),
        PackedRow((2, 6, 0), 24, offsets=(0, 9, 16, 19)),
        PackedRow((4,), 8, offsets=(0, 2)),
    ]


def test_rows_with_the_most_samples_are_split_until_every_replica_has_as_many() -> None:
    replicas = Cluster(n_replicas=3, n_stages=2, device_memory_bytes=10**9)
    found = PackedFirstFit(32)(samples_of([24, 8, 16, 6, 5, 3]), LinearCost(), replicas)
    # Rows (0 1) and (2 3 4 5), of which the second gives its shortest sample.
    assert [[m.sample_ids for m in replica] for replica in found] == [[(0, 1)], [(2, 3, 4)], [(5,)]]
