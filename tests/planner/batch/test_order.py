from dynapipe_hpc.data.sample import Sample
from dynapipe_hpc.planner.batch.order import order_samples, orders


def test_the_longest_comes_first_and_equal_ones_by_id() -> None:
    samples = [Sample(3, 2, 5), Sample(1, 6, 1), Sample(7, 90, 1), Sample(2, 0, 1)]
    assert [sample.sample_id for sample in order_samples(samples)] == [7, 1, 3, 2]


def test_an_encoder_decoder_is_ordered_by_input_then_target() -> None:
    samples = [Sample(3, 2, 5), Sample(1, 6, 1), Sample(7, 6, 9), Sample(2, 6, 1)]
    ordered = orders(samples, is_encoder_decoder=True)["by input and target"]
    assert [sample.sample_id for sample in ordered] == [7, 1, 2, 3]


def test_a_decoder_has_one_order() -> None:
    samples = [Sample(3, 2, 5), Sample(1, 6, 1)]
    assert orders(samples, is_encoder_decoder=False) == {"by length": order_samples(samples)}
