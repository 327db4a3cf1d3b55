from random import Random

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from dynapipe_hpc.data.sample import Sample
from dynapipe_hpc.planner.batch.order import mixed, order_samples, orders
from dynapipe_hpc.planner.batch.order_in_plane import banded, hilbert, tour


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


@given(st.integers(13, 300), st.randoms(use_true_random=False))
def test_every_window_of_mixed_pairs_has_some_of_every_length(n: int, random: Random) -> None:
    lengths = random.sample(range(1000), n)
    order = [
        sample.input_tokens for sample in mixed([Sample(i, k, 1) for i, k in enumerate(lengths)])
    ]
    assert sorted(order) == sorted(lengths)
    thirds = np.argsort(np.argsort(order)) * 3 // n
    for first in range(n - 12):
        counts = np.bincount(thirds[first : first + 13], minlength=3)
        assert counts.min() >= 3 and counts.max() <= 6


PAIRS = st.lists(st.tuples(st.integers(0, 99), st.integers(1, 99)), min_size=1, max_size=30)


@given(pairs=PAIRS)
def test_every_order_holds_each_sample_once_whatever_the_order_of_arrival(
    pairs: list[tuple[int, int]],
) -> None:
    samples = [Sample(i, *pair) for i, pair in enumerate(pairs)]
    found = orders(samples, is_encoder_decoder=True)
    assert list(found) == ["by input and target", "tour", "hilbert", "banded"]
    for ordered in found.values():
        assert sorted(sample.sample_id for sample in ordered) == list(range(len(samples)))
    assert orders(samples[::-1], is_encoder_decoder=True) == found


def steps(order: np.ndarray, x: np.ndarray, y: np.ndarray) -> list[int]:
    found: list[int] = (np.abs(np.diff(x[order])) + np.abs(np.diff(y[order]))).tolist()
    return found


def test_the_curve_goes_from_each_cell_to_one_beside_it() -> None:
    x, y = (side.reshape(-1) for side in np.mgrid[:16, :16])
    assert steps(hilbert(x, y), x, y) == [1] * 255


def test_bands_are_gone_through_up_and_down() -> None:
    x, y = (side.reshape(-1) for side in np.mgrid[:4, :4])
    assert y[banded(x, y)].tolist() == [3, 3, 2, 2, 1, 1, 0, 0, 0, 0, 1, 1, 2, 2, 3, 3]


def test_a_tour_is_shorter_than_sorting_and_no_turn_of_a_part_makes_it_shorter() -> None:
    x, y = np.random.default_rng(0).integers(0, 1000, (2, 60))
    order = tour(x, y)
    length = sum(steps(order, x, y))
    assert length < 0.4 * sum(steps(np.lexsort((-y, -x)), x, y))
    for first in range(1, 60):
        for last in range(first + 1, 60):
            turned = np.concatenate(
                [order[:first], order[first : last + 1][::-1], order[last + 1 :]]
            )
            assert sum(steps(turned, x, y)) >= length
