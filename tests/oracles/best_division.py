"""The best division of samples into micro-batches and over replicas, by trying all."""

from collections.abc import Callable, Iterator, Sequence


def least_ms(
    lengths: Sequence[int], n_replicas: int, micro_batch_ms: Callable[[list[int]], float]
) -> float:
    """Least time of the slowest replica, over all set partitions and all ways to hand them out."""
    alone_ms: dict[tuple[int, ...], float] = {}

    def fewest_ms(members: tuple[int, ...]) -> float:
        """Least time of one replica: the micro-batch of its first sample, and the rest."""
        if not members:
            return 0.0
        if members not in alone_ms:
            first, *others = members
            alone_ms[members] = min(
                micro_batch_ms([lengths[i] for i in (first, *chosen)])
                + fewest_ms(tuple(i for i in others if i not in chosen))
                for chosen in _subsets(others)
            )
        return alone_ms[members]

    samples = range(len(lengths))
    return min(
        max(fewest_ms(tuple(i for i in samples if owner[i] == r)) for r in range(n_replicas))
        for owner in _owners(len(lengths), n_replicas)
        if len(set(owner)) == n_replicas
    )


def _subsets(items: Sequence[int]) -> Iterator[tuple[int, ...]]:
    for bits in range(1 << len(items)):
        yield tuple(item for k, item in enumerate(items) if bits >> k & 1)


def _owners(n: int, n_replicas: int) -> Iterator[tuple[int, ...]]:
    """Replica of each sample; the first sample is on the first, as replicas are alike."""
    for number in range(n_replicas ** (n - 1)):
        yield (0, *(number // n_replicas**k % n_replicas for k in range(n - 1)))
