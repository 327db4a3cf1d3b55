"""All plans of few samples."""

from collections.abc import Iterator, Sequence
from itertools import permutations, product

from dynapipe_hpc.data.microbatch import MicroBatch, Recompute
from dynapipe_hpc.data.sample import Sample
from dynapipe_hpc.planner.batch.order import order_samples
from dynapipe_hpc.planner.batch.row_length import padded_microbatch


def every_partition(samples: Sequence[Sample]) -> Iterator[list[list[Sample]]]:
    """All ways to put samples into groups, neighbours or not."""
    if not samples:
        yield []
        return
    for groups in every_partition(samples[1:]):
        yield [[samples[0]], *groups]
        for i, group in enumerate(groups):
            yield [*groups[:i], [samples[0], *group], *groups[i + 1 :]]


def every_padded_plan(
    samples: Sequence[Sample], n_replicas: int, is_encoder_decoder: bool = False
) -> Iterator[list[list[MicroBatch]]]:
    """All partitions, over all replicas, in all orders; no replica is empty."""
    for groups in every_partition(order_samples(samples)):
        for order in permutations(
            padded_microbatch(group, Recompute.NONE, is_encoder_decoder) for group in groups
        ):
            for owners in product(range(n_replicas), repeat=len(order)):
                replicas: list[list[MicroBatch]] = [[] for _ in range(n_replicas)]
                for owner, microbatch in zip(owners, order, strict=True):
                    replicas[owner].append(microbatch)
                if all(replicas):
                    yield replicas
