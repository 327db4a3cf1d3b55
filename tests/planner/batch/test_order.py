from dynapipe_hpc.data.sample import Sample
from dynapipe_hpc.planner.batch.order import order_samples


def test_the_longest_comes_first_and_equal_ones_by_id() -> None:
    samples = [Sample(3, 2, 5), Sample(1, 6, 1), Sample(7, 90, 1), Sample(2, 0, 1)]
    assert [sample.sample_id for sample in order_samples(samples)] == [7, 1, 3, 2]
