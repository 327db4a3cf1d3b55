"""Packed rows filled one after the other in order of arrival: a baseline."""

from collections.abc import Sequence
from dataclasses import dataclass

from dynapipe_hpc.data.microbatch import MicroBatch
from dynapipe_hpc.data.sample import Sample
from dynapipe_hpc.plan.cluster import Cluster
from dynapipe_hpc.planner.baselines.deal import deal
from dynapipe_hpc.planner.batch.packed_rows import packed_replicas, packed_tokens
from dynapipe_hpc.planner.cost.cost_model import CostModel


@dataclass(frozen=True, slots=True)
class PackedNextFit:
    """Next fit: a row ends where the next sample would exceed its tokens.

    Replicas take rows in turns. Single samples are split off the last rows until every replica
    has as many.

    Attributes:
        tokens_per_microbatch: Limit on the tokens of a row; a longer sample has one of its own.

    Source:
        The packing scheduler `dp_balanced` of Megatron-Core (`core/datasets/data_schedule.py`).
    """

    tokens_per_microbatch: int

    def __str__(self) -> str:
        """The rule and its setting."""
        return f"packed next fit, {self.tokens_per_microbatch} tokens"

    def __call__(
        self, samples: Sequence[Sample], cost: CostModel, cluster: Cluster
    ) -> list[list[MicroBatch]]:
        """Groups the samples of all replicas, see `ReplicaRule`."""
        rows = next_fit(packed_tokens(samples, cost).tolist(), self.tokens_per_microbatch)
        replicas = deal(rows, cluster.n_replicas, donors=reversed(range(len(rows))))
        return packed_replicas(samples, replicas, cost, cluster)


def next_fit(sizes: Sequence[int], capacity: int) -> list[list[int]]:
    """Puts items into bins in the order given; only the last bin is ever open.

    Args:
        sizes: Sizes of items, >= 1; one larger than `capacity` is alone in its bin.
        capacity: Size of a bin.

    Returns:
        Per bin its items.

    Source:
        Johnson, "Near-optimal bin packing algorithms", MIT 1973.
    """
    bins: list[list[int]] = []
    room = 0
    for item, size in enumerate(sizes):
        if size > room:
            bins.append([])
            room = capacity
        bins[-1].append(item)
        room -= size
    return bins
