"""Groups dealt to replicas, as many to each."""

from collections.abc import Iterable, Sequence

from dynapipe_hpc.planner.batch.replicas import TooFewMicroBatchesError


def deal(
    groups: Sequence[Sequence[int]], n_replicas: int, donors: Iterable[int]
) -> list[list[list[int]]]:
    """Deals groups to replicas in turns, after splitting some so that all get as many.

    The last item of a donor becomes a group of its own at the end, until the number of groups is
    a multiple of the replicas or no donor has more than one item.

    Args:
        groups: Items of every group.
        n_replicas: Number of replicas.
        donors: Indices of the groups to split; one gives all but one of its items before the next.

    Returns:
        Groups per replica, in the given order.

    Raises:
        TooFewMicroBatchesError: A replica would have nothing to do.
    """
    hands = [list(group) for group in groups]
    for donor in donors:
        while len(hands) % n_replicas and len(hands[donor]) > 1:
            hands.append([hands[donor].pop()])
    if len(hands) < n_replicas:
        raise TooFewMicroBatchesError.from_counts(len(hands), n_replicas)
    return [hands[replica::n_replicas] for replica in range(n_replicas)]
