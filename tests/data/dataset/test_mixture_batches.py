"""Global batches of mixtures, compared with batches that are filled sample by sample."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.oracles.mixed_batches import Mixed, mixed_batches

from dynapipe_hpc.data.config import DataConfig
from dynapipe_hpc.data.dataset import mixture as mixture_file
from dynapipe_hpc.data.dataset.long_samples import UsedTokens
from dynapipe_hpc.data.dataset.mixture import Mixture, MixtureBatches
from dynapipe_hpc.data.dataset.sampler import TokenBudgetSampler
from dynapipe_hpc.data.errors import InputError

N_BATCHES = 24
DATASETS = st.lists(
    st.builds(
        Mixed,
        st.lists(st.integers(1, 9), min_size=1, max_size=20),
        st.sampled_from([0.125, 0.25, 0.5, 0.375]),
        st.none() | st.integers(1, 3),
    ),
    min_size=2,
    max_size=4,
)


def sampler_of(datasets: list[Mixed], budget: int, seed: int = 0) -> TokenBudgetSampler:
    tokens = np.concatenate([np.array(each.tokens, np.int64) for each in datasets])
    mixture = Mixture(
        names=tuple(map(str, range(len(datasets)))),
        n_samples=tuple(len(each.tokens) for each in datasets),
        n_tokens=tuple(sum(each.tokens) for each in datasets),
        rates=tuple(each.rate for each in datasets),
        epochs=tuple(each.epochs for each in datasets),
    )
    ones = np.ones_like(tokens)
    used = UsedTokens(np.arange(len(tokens)), tokens - ones, ones, 0 * ones)
    config = DataConfig(dataset="x.h5", max_tokens=1, tokens_per_batch=budget, seed=seed)
    batches = MixtureBatches(mixture, used, config)
    return TokenBudgetSampler(used, np.arange(len(tokens)) % 3, batches)


def visits_of(sampler: TokenBudgetSampler, datasets: list[Mixed], k: int) -> list[tuple[int, int]]:
    """(dataset, sample) of an iteration."""
    ends = np.cumsum([len(each.tokens) for each in datasets])
    pairs = []
    for sample in sampler.iteration(k):
        dataset = int(np.searchsorted(ends, sample.sample_id, side="right"))
        first = int(ends[dataset]) - len(datasets[dataset].tokens)
        pairs.append((dataset, sample.sample_id - first))
        assert sample.tokens == datasets[dataset].tokens[pairs[-1][1]]
    return pairs


@pytest.fixture(params=[1, 7, mixture_file.MIN_DRAWS])
def draws_of_a_block(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    for limit in ("MIN_DRAWS", "MAX_DRAWS"):
        monkeypatch.setattr(mixture_file, limit, request.param)


@pytest.mark.usefixtures("draws_of_a_block")
@given(DATASETS, st.integers(9, 27), st.integers(0, 2**40))
def test_batches_agree_with_filling_them_one_by_one(
    datasets: list[Mixed], budget: int, seed: int
) -> None:
    expected = mixed_batches(datasets, budget, seed, N_BATCHES)
    sampler = sampler_of(datasets, budget, seed)
    assert [visits_of(sampler, datasets, k) for k in range(len(expected))] == expected
    if len(expected) < N_BATCHES:
        with pytest.raises(InputError, match=f"after {len(expected)} iterations all datasets"):
            sampler.iteration(len(expected))
