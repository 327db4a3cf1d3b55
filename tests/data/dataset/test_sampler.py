"""Samples of every iteration, and those that are held out."""

from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.oracles.plain_dropout import next_64

from dynapipe_hpc.data.config import DataConfig
from dynapipe_hpc.data.dataset import sampler as sampler_file
from dynapipe_hpc.data.dataset.long_samples import UsedTokens, used_tokens
from dynapipe_hpc.data.dataset.sampler import (
    EpochBatches,
    TokenBudgetSampler,
    evaluated_samples,
    in_batches,
)
from dynapipe_hpc.data.sample import Sample


def sampler_of(
    lengths: list[tuple[int, int]], max_tokens: int = 16, budget: int = 32, seed: int = 0
) -> TokenBudgetSampler:
    inputs, targets = np.array(lengths, np.int64).reshape(-1, 2).T
    config = DataConfig(
        dataset="x.h5",
        max_tokens=max_tokens,
        long_samples="cut_targets",
        tokens_per_batch=budget,
        seed=seed,
    )
    used = used_tokens(inputs, targets, config)
    return TokenBudgetSampler(used, np.arange(len(lengths)) % 3, EpochBatches(used, config))


def fill_batches(samples: list[Sample], budget: int) -> list[list[Sample]]:
    """The definition, sample by sample; a last batch with room left counts only alone."""
    batches: list[list[Sample]] = [[]]
    for sample in samples:
        if sum(s.tokens for s in batches[-1]) + sample.tokens > budget:
            batches.append([])
        batches[-1].append(sample)
    is_full = sum(sample.tokens for sample in batches[-1]) == budget
    return batches if is_full or len(batches) == 1 else batches[:-1]


LENGTHS = st.lists(st.tuples(st.integers(0, 30), st.integers(1, 30)), min_size=1, max_size=60)


@given(LENGTHS, st.integers(1, 16), st.integers(0, 40), st.integers(0, 3))
def test_batches_agree_with_filling_them_one_by_one(
    lengths: list[tuple[int, int]], max_tokens: int, more: int, seed: int
) -> None:
    budget = max_tokens + more
    # A batch that holds everything shows the order of its epoch.
    whole = sampler_of(lengths, max_tokens, max_tokens * len(lengths), seed)
    expected = [batch for k in range(3) for batch in fill_batches(whole.iteration(k), budget)]
    sampler = sampler_of(lengths, max_tokens, budget, seed)
    assert [sampler.iteration(k) for k in range(len(expected))] == expected


@given(LENGTHS, st.integers(1, 16), st.integers(0, 40), st.integers(1, 6), st.integers(1, 40))
def test_the_first_iteration_with_few_samples_is_found_ahead(
    lengths: list[tuple[int, int]], max_tokens: int, more: int, n_samples: int, n_iterations: int
) -> None:
    sampler = sampler_of(lengths, max_tokens, max_tokens + more)
    sizes = [len(sampler.iteration(k)) for k in range(n_iterations)]
    expected = next((k for k, size in enumerate(sizes) if size < n_samples), None)
    assert sampler.first_below(n_samples, n_iterations) == expected


@given(LENGTHS, st.integers(1, 16), st.integers(0, 40), st.integers(1, 12))
def test_epochs_are_so_many_batches(
    lengths: list[tuple[int, int]], max_tokens: int, more: int, quarters: int
) -> None:
    sampler = sampler_of(lengths, max_tokens, max_tokens + more)
    whole = sampler_of(lengths, max_tokens, max_tokens * len(lengths))  # a batch per epoch
    n_batches = [len(fill_batches(whole.iteration(k), max_tokens + more)) for k in range(4)]
    expected = sum(n_batches[: quarters // 4]) - (-n_batches[quarters // 4] * (quarters % 4) // 4)
    assert sampler.iterations_of_epochs(quarters / 4) == expected


@pytest.mark.parametrize(
    ("tokens", "n"), [(7, 1), (8, 1), (9, 2), (16, 2), (17, 3), (32, 4), (40, 5)]
)
def test_a_batch_that_completes_the_tokens_is_the_last(tokens: int, n: int) -> None:
    batches_of_8 = sampler_of([(1, 3)] * 8, max_tokens=4, budget=8)
    assert batches_of_8.iterations_of_tokens(tokens, most=60) == n


@pytest.mark.parametrize("length", [3, 8, 2**53])
def test_batches_beyond_those_that_are_counted_have_their_rate(
    length: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sampler_file, "MAX_COUNTED_SAMPLES", 16)
    batches_of_8 = sampler_of([(1, 3)] * 9, max_tokens=4, budget=8)  # four, and one is dropped
    assert batches_of_8.iterations_of_tokens(8 * length, most=2**60) == length
    assert batches_of_8.iterations_of_epochs(length) == 4 * length


@given(LENGTHS, st.integers(1, 16))
def test_an_epoch_visits_every_sample_and_cuts_it(
    lengths: list[tuple[int, int]], max_tokens: int
) -> None:
    epoch = sampler_of(lengths, max_tokens, max_tokens * len(lengths)).iteration(0)
    assert sorted(sample.sample_id for sample in epoch) == list(range(len(lengths)))
    for sample in epoch:
        expected = truncated(lengths[sample.sample_id], max_tokens)
        assert (sample.input_tokens, sample.target_tokens) == expected


def truncated(lengths: tuple[int, int], max_tokens: int) -> tuple[int, int]:
    target = min(lengths[1], max_tokens)
    return min(lengths[0], max_tokens - target), target


def test_threads_get_the_same_iterations() -> None:
    lengths = [(i % 13, 1 + i % 5) for i in range(100)]
    alone, shared = sampler_of(lengths), sampler_of(lengths)
    asked = [7 * k % 150 for k in range(150)]
    with ThreadPoolExecutor(8) as threads:
        found = list(threads.map(shared.iteration, asked, timeout=30))
    assert found == [alone.iteration(k) for k in asked]


@pytest.mark.parametrize("tenths", range(1, 41))
def test_tenths_of_epochs_of_ten_batches_are_batches(tenths: int) -> None:
    """1.1 - 1 is a little more than 0.1."""
    sampler = sampler_of([(1, 1)] * 10, 2, 2)
    assert sampler.iterations_of_epochs(tenths / 10) == tenths


def test_a_seed_beyond_32_bits_has_orders_of_its_own() -> None:
    lengths, large = [(1, 1)] * 16, 2**32
    seeds = [5, 6, 5 + large, 6 + large, 5 + 2 * large, 5 * large, 2**63 - 1]
    orders = [
        tuple(s.sample_id for s in sampler_of(lengths, seed=seed).iteration(epoch))
        for seed in seeds
        for epoch in range(8)
    ]
    assert len(set(orders)) == len(orders)


def test_the_order_of_an_epoch_stays_what_it_was() -> None:
    """Runs that go on after an upgrade must see the samples in the order they began with."""
    [first, second] = [
        [s.sample_id for s in sampler_of([(1, 1)] * 8, seed=5).iteration(k)] for k in range(2)
    ]
    assert first == [3, 6, 2, 4, 5, 7, 0, 1]
    assert second == [2, 0, 6, 1, 5, 7, 4, 3]


def test_an_evaluation_takes_samples_in_the_order_of_their_hashes_until_tokens_are_used_up() -> (
    None
):
    inputs, targets = np.arange(100) % 7, 1 + np.arange(100) % 3
    used, tasks = UsedTokens(np.arange(100), inputs, targets, 0 * targets), np.arange(100) % 4
    ids = np.arange(10, 60)
    found = evaluated_samples(used, ids, tasks, most_tokens=40, n_least=2)
    expected, tokens = [], 0
    for i in sorted(range(10, 60), key=next_64):
        tokens += int(inputs[i] + targets[i])
        if tokens > 40:
            break
        expected.append(Sample(i, int(inputs[i]), int(targets[i]), int(tasks[i])))
    assert found == expected
    assert len(evaluated_samples(used, ids, tasks, most_tokens=1, n_least=3)) == 3


@given(st.lists(st.integers(1, 16), min_size=3, max_size=40), st.integers(1, 3))
def test_batches_hold_all_samples_and_enough_for_every_replica(
    lengths: list[int], n_least: int
) -> None:
    samples = [Sample(i, n - 1, 1) for i, n in enumerate(lengths)]
    batches = in_batches(samples, 20, n_least)
    assert [sample for batch in batches for sample in batch] == samples
    for batch in batches:
        assert len(batch) >= n_least
        # More than the budget only where a batch has just enough samples, or took in the last few.
        assert (
            sum(s.tokens for s in batch) <= 20 or len(batch) <= 2 * n_least or batch is batches[-1]
        )
