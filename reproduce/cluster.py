"""The cluster of the paper: nodes of eight A100-40GB, and what travels between them."""

from typing import Any

from dynapipe_hpc.plan.cluster import Cluster

GPUS_PER_NODE = 8
INSIDE = {"latency_ms": 0.02, "bytes_per_ms": 2.4e8}
"""NVSwitch: four fifths of 300 GB/s per GPU and direction."""
NODE_BYTES_PER_MS = 4e7
"""Network: four fifths of 400 Gbit/s per node and direction."""
NETWORK_LATENCY_MS = 0.05

LINKS = (
    "Between GPUs of a node travel 240 GB/s, between nodes 40 GB/s that all GPUs of a node share; "
    "a pipeline over several nodes has the slower link everywhere. Reductions of gradients are "
    "rings over these links."
)


def cluster_table(n_replicas: int, n_stages: int, n_shards: int) -> dict[str, Any]:
    """Sizes and link of a [cluster] table; the GPUs of a replica are neighbours."""
    link: dict[str, float] = INSIDE
    if n_stages * n_shards > GPUS_PER_NODE:
        # All shards of a stage send at the same time.
        rate = NODE_BYTES_PER_MS / min(n_shards, GPUS_PER_NODE)
        link = {"latency_ms": NETWORK_LATENCY_MS, "bytes_per_ms": rate}
    return {"n_replicas": n_replicas, "n_stages": n_stages, "n_shards": n_shards, "link": link}


def reduce_ms_per_byte(cluster: Cluster) -> float:
    """Time of a ring all-reduce over replicas, per byte of a GPU's gradients.

    Every GPU of a replica has a ring of its own. Those of the GPUs of a node leave it together.
    """
    if cluster.n_replicas == 1:
        return 0.0
    per_replica = cluster.n_stages * cluster.n_shards
    rate = INSIDE["bytes_per_ms"]
    if cluster.n_ranks > GPUS_PER_NODE:
        rate = NODE_BYTES_PER_MS / min(per_replica, GPUS_PER_NODE)
    return 2 * (1 - 1 / cluster.n_replicas) / rate
