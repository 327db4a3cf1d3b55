"""Clusters that a tiny model is trained on, by their sizes."""

from collections.abc import Sequence

import pytest

from dynapipe_hpc.plan.cluster import Cluster


def clusters(*sizes: tuple[int, int, int]) -> list[Cluster]:
    """Of so many stages, replicas and shards each."""
    return [
        Cluster(n_stages=stages, n_replicas=replicas, n_shards=shards, device_memory_bytes=10**6)
        for stages, replicas, shards in sizes
    ]


def spread(those: Sequence[Cluster]) -> list[Cluster]:
    """Clusters that have shards, which also divide the residual stream among them."""
    return [c.model_copy(update={"sequence_parallel": True}) for c in those if c.n_shards > 1]


def id_of(cluster: Cluster) -> str:
    """Its sizes in words."""
    sizes = f"{cluster.n_stages} stages x {cluster.n_replicas} replicas x {cluster.n_shards} shards"
    return f"{sizes}, spread" if cluster.sequence_parallel else sizes


def each_of(those: Sequence[Cluster]) -> pytest.MarkDecorator:
    """A test for every one of some clusters, as its argument `cluster`."""
    return pytest.mark.parametrize("cluster", those, ids=id_of)
