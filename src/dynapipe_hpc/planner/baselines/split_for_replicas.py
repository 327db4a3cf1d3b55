"""Work for every replica where a baseline's micro-batches are too few."""

from collections.abc import Sequence

Row = tuple[int, ...]
Group = tuple[Row, ...]


def split_for_replicas(groups: Sequence[Group], n_replicas: int) -> list[Group]:
    """Halves the group with the most rows until there is one per replica.

    Groups of one row are halved between its samples. With fewer samples than replicas, every
    sample ends up alone.

    Args:
        groups: Rows of sample ids of every micro-batch.
        n_replicas: Number of groups wanted at least.
    """
    parts = list(groups)
    while len(parts) < n_replicas:
        largest = max(range(len(parts)), key=lambda i: (len(parts[i]), len(parts[i][0])))
        halves = _halves(parts[largest])
        if len(halves) == 1:
            break
        parts[largest : largest + 1] = halves
    return parts


def _halves(group: Group) -> list[Group]:
    if len(group) > 1:
        middle = (len(group) + 1) // 2
        return [group[:middle], group[middle:]]
    (row,) = group
    middle = (len(row) + 1) // 2
    return [(half,) for half in (row[:middle], row[middle:]) if half]
