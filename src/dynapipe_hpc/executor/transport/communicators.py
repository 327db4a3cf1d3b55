"""Communicators of NCCL that a rank takes part in, counted before they exist."""

from collections.abc import Sequence
from dataclasses import dataclass

from dynapipe_hpc.executor.transport.torch_groups import TRANSFER_CTAS
from dynapipe_hpc.plan.cluster import Cluster

Holders = Sequence[tuple[int, ...]]
"""Stages that hold the same (tied) weight and exchange it in pairs, for each such weight."""

CTA_BYTES = 10_000_000
"""Buffers of one block in one direction: up to 308 MB were seen for the 32 blocks that NCCL starts
without a limit (NVSwitch)."""
SUM_BYTES = 32 * CTA_BYTES


@dataclass(frozen=True, slots=True)
class Communicators:
    """Number of communicators of a rank, by use.

    Attributes:
        transfers: Communicators of activations or gradients, each in one direction.
        copies: Communicators of copies of tied weights, in both directions.
    """

    transfers: int
    copies: int
    sums: int

    @property
    def n(self) -> int:
        """Number of all of them."""
        return self.transfers + self.copies + self.sums

    @property
    def n_bytes(self) -> int:
        """Estimated memory, in bytes."""
        n_directions = self.transfers + 2 * self.copies
        return n_directions * TRANSFER_CTAS * CTA_BYTES + self.sums * SUM_BYTES


def communicators_of(cluster: Cluster, holders: Holders, stage: int) -> Communicators:
    """Communicators of the ranks of a stage, if each has a GPU to itself."""
    neighbours = {stage - 1, stage + 1} & set(range(cluster.n_stages))
    pairs = {frozenset((first, other)) for first, *others in holders for other in others}
    peers = {peer for pair in pairs if stage in pair for peer in pair - {stage}}
    sizes = (cluster.n_replicas, cluster.n_shards, cluster.n_stages * cluster.n_shards)
    return Communicators(
        transfers=2 * len(neighbours),
        # Neighbours exchange copies through the communicator of gradients.
        copies=len(peers - neighbours),
        sums=sum(size > 1 for size in sizes),
    )


def communicator_bytes(cluster: Cluster, holders: Holders) -> int:
    """Estimated memory of the communicators of a rank, on the stage that needs the most."""
    stages = range(cluster.n_stages)
    return max(communicators_of(cluster, holders, stage).n_bytes for stage in stages)
