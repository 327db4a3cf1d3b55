import time

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from dynapipe_hpc.data.sample import Sample
from dynapipe_hpc.planner.batch.order import halved, order_samples, orders, tour

MANY = np.random.default_rng(0).integers(1, 2000, 64).tolist()


@given(st.lists(st.integers(1, 2000), min_size=1, max_size=130))
@example(MANY)
def test_halves_and_quarters_of_an_order_have_about_as_many_tokens(lengths: list[int]) -> None:
    samples = order_samples([Sample(i, n - 1, 1) for i, n in enumerate(lengths)])
    ordered = halved(samples)
    assert sorted(s.sample_id for s in ordered) == list(range(len(lengths)))
    assert halved(samples) == ordered
    tokens = np.cumsum([0, *(sample.tokens for sample in ordered)])
    for n_parts in (2, 4):
        shares = tokens[-1] * np.arange(1, n_parts) / n_parts
        beside = np.abs(tokens[:, None] - shares).min(axis=0)
        assert (beside <= (20 if lengths is MANY else max(lengths))).all()


PAIRS = st.lists(st.tuples(st.integers(0, 99), st.integers(1, 99)), min_size=1, max_size=30)


@given(pairs=PAIRS)
def test_every_order_holds_each_sample_once_whatever_the_order_of_arrival(
    pairs: list[tuple[int, int]],
) -> None:
    samples = [Sample(i, *pair) for i, pair in enumerate(pairs)]
    found = orders(samples, is_encoder_decoder=True)
    assert len(found) == 2
    for ordered in found:
        assert sorted(sample.sample_id for sample in ordered) == list(range(len(samples)))
    assert orders(samples[::-1], is_encoder_decoder=True) == found


def steps(order: np.ndarray, x: np.ndarray, y: np.ndarray) -> list[int]:
    found: list[int] = (np.abs(np.diff(x[order])) + np.abs(np.diff(y[order]))).tolist()
    return found


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


@pytest.mark.parametrize("n_points", [2000, 3000, 100_000])
def test_a_tour_of_many_points_is_about_as_short_and_takes_no_minute(n_points: int) -> None:
    """Lengths of short paths through random points grow with the root of their number."""
    x, y = np.random.default_rng(0).integers(0, 60_000, (2, n_points))
    begin_s = time.thread_time()
    order = tour(x, y)
    assert time.thread_time() - begin_s < 3
    assert sum(steps(order, x, y)) < 1.2 * 60_000 * np.sqrt(n_points)
