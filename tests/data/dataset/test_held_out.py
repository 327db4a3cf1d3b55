"""Samples that are held out, and what an evaluation takes of them."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from dynapipe_hpc.data.dataset.held_out import (
    evaluated_samples,
    hashes_of,
    in_batches,
)
from dynapipe_hpc.data.dataset.long_samples import UsedTokens
from dynapipe_hpc.data.sample import Sample


def splitmix64(state: int) -> int:
    """The published algorithm, in whole numbers."""
    z = (state + 0x9E3779B97F4A7C15) % 2**64
    z = ((z ^ (z >> 30)) * 0xBF58476D1CE4E5B9) % 2**64
    z = ((z ^ (z >> 27)) * 0x94D049BB133111EB) % 2**64
    return z ^ (z >> 31)


def test_the_hash_is_splitmix64() -> None:
    ids = np.array([0, 1, 2, 1000, 2**31, 2**40])
    assert hashes_of(ids).tolist() == [splitmix64(int(i)) for i in ids]
    assert int(hashes_of(np.array([0]))[0]) == 0xE220A8397B1DCDAF  # published first value


def test_an_evaluation_takes_samples_in_the_order_of_their_hashes_until_tokens_are_used_up() -> (
    None
):
    inputs, targets = np.arange(100) % 7, 1 + np.arange(100) % 3
    used, tasks = UsedTokens(np.arange(100), inputs, targets, 0 * targets), np.arange(100) % 4
    ids = np.arange(10, 60)
    found = evaluated_samples(used, ids, tasks, most_tokens=40, n_least=2)
    expected, tokens = [], 0
    for i in sorted(range(10, 60), key=splitmix64):
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
