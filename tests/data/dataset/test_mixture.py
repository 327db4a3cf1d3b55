"""Draws from mixtures: rates, and what they add up to."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.oracles.mixed_batches import Mixed, mixed_draws

from dynapipe_hpc.data.config import DataConfig
from dynapipe_hpc.data.dataset.mixture import Mixture

SIZES = st.lists(st.integers(1, 40), min_size=2, max_size=5)
EPOCHS = st.none() | st.integers(1, 4)


def mixture_of(
    sizes: list[int],
    weights: list[float] | None = None,
    epochs: list[int | None] | None = None,
    **settings: float,
) -> Mixture:
    mixed = [
        {
            "dataset": f"{i}.h5",
            "weight": weights[i] if weights else None,
            "epochs": epochs[i] if epochs else None,
        }
        for i in range(len(sizes))
    ]
    tables = {"mixture": mixed, "max_tokens": 8, "tokens_per_batch": 8, **settings}
    return Mixture.from_config(DataConfig.model_validate(tables), sizes, [3 * n for n in sizes])


def as_mixed(mixture: Mixture) -> list[Mixed]:
    parts = zip(mixture.n_samples, mixture.rates, mixture.epochs, strict=True)
    return [Mixed([1] * n, rate, epochs) for n, rate, epochs in parts]


@given(st.data(), SIZES, st.integers(0, 100), st.integers(1, 100))
def test_draws_are_those_that_have_been_due_the_longest(
    data: st.DataObject, sizes: list[int], n_before: int, n_draws: int
) -> None:
    weights = data.draw(st.lists(st.sampled_from([0.1, 1, 2, 3, 7]), min_size=5, max_size=5))
    epochs = data.draw(st.lists(EPOCHS, min_size=5, max_size=5))
    mixture = mixture_of(sizes, weights, epochs)
    expected = mixed_draws(as_mixed(mixture), n_before + 10 * n_draws)
    counts = np.bincount(expected[:n_before], minlength=len(sizes)).tolist()
    found = mixture.draws_after(counts, n_draws).tolist()
    assert found == expected[n_before : n_before + len(found)]
    assert found or len(expected) <= n_before


def test_a_temperature_flattens_rates_after_the_cap() -> None:
    sizes = [100, 2**40]
    hot = mixture_of(sizes, mixture_temperature=2)
    assert hot.rates[0] == pytest.approx(10 / (10 + 2**20), rel=1e-4)
    capped = mixture_of(sizes, mixture_temperature=2, mixture_cap=10_000)
    assert capped.rates == pytest.approx([1 / 11, 10 / 11])
