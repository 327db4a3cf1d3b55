"""Batches of sequences that ranks finish at about the same time."""

import heapq

import numpy as np
import pytest

from balanced_rl_batches import balanced_batches, cut, transformer_cost
from dynapipe_hpc import InputError

COST = transformer_cost(hidden_size=64, n_layers=2, launch_tokens=30)
MAX_TOKENS = 2048


def rank_time(rank: list[list[int]], lengths: list[int]) -> float:
    """Work by hand: packed sequences attend only to themselves."""
    works = [sum(lengths[i] * (1 + lengths[i] / 384) for i in each) for each in rank]
    return sum(2 * (30 + work) for work in works if work)


def rollouts(seed: int, n: int = 96) -> list[int]:
    random = np.random.default_rng(seed)
    return [int(length) for length in random.lognormal(np.log(300), 0.9, n).clip(10, 2040)]


def longest_first(lengths: list[int], n_ranks: int) -> float:
    """Slowest rank where sequences go, longest first, to the rank with fewest tokens."""
    ranks: list[tuple[int, int, list[list[int]]]] = [(0, rank, [[]]) for rank in range(n_ranks)]
    for i in sorted(range(len(lengths)), key=lambda i: -lengths[i]):
        tokens, rank, batches = heapq.heappop(ranks)
        if sum(lengths[j] for j in batches[-1]) + lengths[i] > MAX_TOKENS:
            batches.append([])
        batches[-1].append(i)
        heapq.heappush(ranks, (tokens + lengths[i], rank, batches))
    return max(rank_time(batches, lengths) for _, _, batches in ranks)


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("equal_counts", [False, True])
def test_ranks_have_every_sequence_once_within_the_limit(seed: int, equal_counts: bool) -> None:
    lengths = rollouts(seed)
    ranks = balanced_batches(lengths, 4, MAX_TOKENS, COST, equal_counts=equal_counts)
    assert sorted(i for rank in ranks for each in rank for i in each) == list(range(96))
    assert all(sum(lengths[i] for i in each) <= MAX_TOKENS for rank in ranks for each in rank)
    if equal_counts:
        assert len({len(rank) for rank in ranks}) == 1
        assert all(each for rank in ranks for each in rank)


@pytest.mark.parametrize("seed", range(3))
def test_ranks_end_sooner_than_with_equal_numbers_of_tokens(seed: int) -> None:
    lengths = rollouts(seed)
    ranks = balanced_batches(lengths, 4, MAX_TOKENS, COST)
    times = [rank_time(rank, lengths) for rank in ranks]
    assert min(times) > 0.98 * max(times)
    assert max(times) < longest_first(lengths, 4)


def test_the_largest_micro_batches_are_cut_in_halves_of_tokens() -> None:
    lengths = [600, 300, 200, 100, 1000]
    rank = [[4], [1, 0, 3, 2]]
    cut(rank, 3, lengths)
    assert rank == [[4], [0], [1, 2, 3]]
    cut(rank, 4, lengths)
    assert rank == [[4], [0], [1], [2, 3]]


def test_what_cannot_be_balanced_is_refused() -> None:
    with pytest.raises(InputError, match=r"lengths has 1 sequences for 2 ranks"):
        balanced_batches([5], 2, 100, COST)
    with pytest.raises(InputError, match=r"sample 1 .* needs 104 bytes on stage 0"):
        balanced_batches([5, 101], 2, 100, COST)
