"""Ranks that become slow are named once, and once more when they are not."""

import numpy as np

from dynapipe_hpc.experiment.run.online_costs import SlowRanks
from dynapipe_hpc.plan.cluster import Cluster

CLUSTER = Cluster(n_replicas=2, n_stages=2, n_shards=2, device_memory_bytes=1)
EVEN = np.array([[1.3, 0.7], [1.3, 0.7]])


def lines(*iterations: float) -> list[tuple[int, str]]:
    """Warnings about stage 1 of replica 0 at each iteration after twenty usual ones."""
    slow_ranks, found = SlowRanks(CLUSTER), []
    for i, now in enumerate([1.0] * 20 + list(iterations)):
        of_ranks = EVEN.copy()
        of_ranks[0, 1] *= now
        found += [(i - 20, line) for line in slow_ranks.add(of_ranks)]
    return found


def test_a_rank_that_becomes_slow_is_named_and_so_is_its_recovery() -> None:
    assert lines(1.1, 1.3, 1.5, *[1.5] * 200, 1.15, 1.05, 1.0) == [
        (1, "rank 2 (stage 1 of replica 0) takes 1.30 times as long as usual for its passes"),
        (204, "rank 2 (stage 1 of replica 0) takes as long as usual again for its passes"),
    ]


def test_noise_is_not_named() -> None:
    assert lines(*np.random.default_rng(0).uniform(0.92, 1.09, 300)) == []


def test_a_rank_that_was_slow_from_the_start_is_told_by_its_peers() -> None:
    slow_ranks = SlowRanks(CLUSTER)
    said = [line for _ in range(40) for line in slow_ranks.add(EVEN * [[1.0, 1.5], [1.0, 1.0]])]
    assert said == [
        "rank 2 (stage 1 of replica 0) takes 1.50 times as long as usual for its passes"
    ]


def test_a_rank_without_peers_is_compared_with_itself_however_long_it_is_slow() -> None:
    slow_ranks = SlowRanks(CLUSTER.model_copy(update={"n_replicas": 1}))
    took = [2.0] * 30 + [3.0] * 300 + [2.0] * 10
    said = [slow_ranks.add(np.array([[1.0, each]])) for each in took]
    assert [i for i, each in enumerate(said) if each] == [30, 330]
