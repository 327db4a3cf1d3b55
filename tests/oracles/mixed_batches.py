from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np


@dataclass(frozen=True)
class Mixed:
    """One of several datasets: the tokens of its samples, its rate, and most of its epochs."""

    tokens: Sequence[int]
    rate: float
    epochs: int | None = None


def mixed_draws(datasets: Sequence[Mixed], n_draws: int) -> list[int]:
    """The dataset of each draw: always that whose next draw has been due the longest."""
    drawn = [0] * len(datasets)
    found: list[int] = []
    while len(found) < n_draws:
        due = [
            ((n + 0.5) / each.rate, d)
            for d, (n, each) in enumerate(zip(drawn, datasets, strict=True))
            if each.epochs is None or n < each.epochs * len(each.tokens)
        ]
        if not due:
            break
        _, dataset = min(due)
        drawn[dataset] += 1
        found.append(dataset)
    return found


def mixed_batches(
    datasets: Sequence[Mixed], budget: int, seed: int, n_batches: int
) -> list[list[tuple[int, int]]]:
    """Batches of (dataset, sample): a last one of all that has room left counts only alone."""
    n_draws = n_batches * (budget + 1)  # a sample has a token at least
    visits = [_visits(len(each.tokens), seed, d) for d, each in enumerate(datasets)]
    batches: list[list[tuple[int, int]]] = [[]]
    room = budget
    draws = mixed_draws(datasets, n_draws)
    for dataset in draws:
        sample = next(visits[dataset])
        n_tokens = datasets[dataset].tokens[sample]
        if n_tokens > room or (dataset, sample) in batches[-1]:
            batches.append([])
            room = budget
        batches[-1].append((dataset, sample))
        room -= n_tokens
    is_end = len(draws) < n_draws
    if room and not (is_end and len(batches) == 1):
        batches.pop()
    return batches[:n_batches]


def _visits(n_samples: int, seed: int, dataset: int) -> Iterator[int]:
    """Samples epoch after epoch, the latest quarter of each not among the earliest of the next."""
    epoch, previous = 0, list[int]()
    quarter = n_samples // 4
    while True:
        numbers = [seed & 0xFFFFFFFF, epoch, seed >> 32, dataset]
        words = np.random.Philox(np.random.SeedSequence(numbers)).random_raw(n_samples).tolist()
        order = sorted(range(n_samples), key=words.__getitem__)
        late = previous[n_samples - quarter :]
        place = quarter
        for i in range(quarter):
            if order[i] in late:
                while order[place] in late:
                    place += 1
                order[i], order[place] = order[place], order[i]
                place += 1
        yield from order
        epoch, previous = epoch + 1, order
