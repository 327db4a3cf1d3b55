"""Clusters of micro-batches in all orders."""

import math
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from reproduce.authors.injection_orders import injection_orders, k_means
from tests.examples.stage_costs import equal_stages

GROUPS = [[1.0, 1.1, 1.2], [5.0, 5.1], [20.0, 20.5, 21.0], [80.0]]


def orders_of(forward_ms: list[float], seed: int = 0) -> list[list[int]]:
    costs = equal_stages(forward_ms, n_stages=3)
    return [order.tolist() for order in injection_orders(costs, seed)]


@given(st.lists(st.floats(0.1, 100), min_size=1, max_size=30), st.integers(0, 3))
def test_every_order_has_every_micro_batch_and_the_given_one_is_first(
    forward_ms: list[float], seed: int
) -> None:
    orders = orders_of(forward_ms, seed)
    given_order = list(range(len(forward_ms)))
    assert orders[0] == given_order
    assert all(sorted(order) == given_order for order in orders)
    assert orders == orders_of(forward_ms, seed)


@pytest.mark.parametrize(("n_microbatches", "n_clusters"), [(20, 4), (21, 3), (4, 4), (2, 2)])
def test_there_are_as_many_orders_as_of_clusters_and_one(
    n_microbatches: int, n_clusters: int
) -> None:
    orders = orders_of([1.5**i for i in range(n_microbatches)])
    assert len(orders) == math.factorial(n_clusters) + 1


def test_few_micro_batches_are_tried_in_every_order() -> None:
    assert len({tuple(order) for order in orders_of([1, 2, 3, 4])}) == math.factorial(4)


def test_clusters_stay_together_and_are_shuffled_anew() -> None:
    forward_ms = [ms for group in GROUPS for ms in group]
    group_of = [g for g, group in enumerate(GROUPS) for _ in group]
    _, *orders = orders_of(forward_ms)
    for order in orders:
        groups = [group_of[i] for i in order]
        assert sum(a != b for a, b in pairwise(groups)) == len(GROUPS) - 1
    assert len({tuple(i for i in order if group_of[i] == 0) for order in orders}) > 1


def test_separate_groups_are_found_and_equal_points_are_one() -> None:
    points = np.array([[x, 2 * x] for group in GROUPS for x in group])
    labels = k_means(points, 4, np.random.default_rng(0)).tolist()
    assert len(set(labels)) == 4
    assert labels[0] == labels[1] == labels[2] != labels[3] == labels[4]
    assert set(k_means(np.ones((5, 4)), 3, np.random.default_rng(0))) == {0}
