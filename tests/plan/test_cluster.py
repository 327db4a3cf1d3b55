import pytest
from hypothesis import given
from hypothesis import strategies as st

from dynapipe_hpc.plan.cluster import Cluster

CLUSTERS = st.builds(
    Cluster,
    n_replicas=st.integers(1, 4),
    n_stages=st.integers(1, 5),
    n_shards=st.integers(1, 4),
    device_memory_bytes=st.just(1),
)


@given(cluster=CLUSTERS)
def test_every_shard_of_every_stage_has_a_rank_of_its_own(cluster: Cluster) -> None:
    places = [
        (replica, stage, shard)
        for replica in range(cluster.n_replicas)
        for stage in range(cluster.n_stages)
        for shard in range(cluster.n_shards)
    ]
    ranks = [cluster.rank_of(*place) for place in places]
    assert ranks == list(range(cluster.n_ranks))
    for rank, place in zip(ranks, places, strict=True):
        found = (cluster.replica_of(rank), cluster.stage_of(rank), cluster.shard_of(rank))
        assert found == place


@given(cluster=CLUSTERS)
def test_plans_number_the_ranks_of_a_shard_as_a_cluster_of_one_shard_would(
    cluster: Cluster,
) -> None:
    alone = cluster.model_copy(update={"n_shards": 1})
    assert cluster.n_plans == alone.n_ranks
    for shard in range(cluster.n_shards):
        ranks = [rank for rank in range(cluster.n_ranks) if cluster.shard_of(rank) == shard]
        assert [cluster.plan_of(rank) for rank in ranks] == list(range(cluster.n_plans))
        for rank in ranks:
            assert cluster.stage_of(rank) == alone.stage_of(cluster.plan_of(rank))


def test_a_cluster_that_plans_cannot_number_is_refused() -> None:
    with pytest.raises(
        ValueError, match="n_replicas x n_stages is 65540, but plans number at most"
    ):
        Cluster(n_replicas=65540, device_memory_bytes=1)
