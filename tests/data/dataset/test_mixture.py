"""Several datasets as one: joined, and mixed by rates."""

from dataclasses import replace
from itertools import starmap
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.examples.tokenized import SAMPLES, header, write_samples
from tests.oracles.mixed_batches import Mixed, mixed_batches, mixed_draws

from dynapipe_hpc.data.config import DataConfig
from dynapipe_hpc.data.dataset import mixture as mixture_file
from dynapipe_hpc.data.dataset.dataset_file import DatasetFile, JoinedDatasets
from dynapipe_hpc.data.dataset.dataset_writer import DatasetWriter
from dynapipe_hpc.data.dataset.long_samples import UsedTokens, describe_long, used_of
from dynapipe_hpc.data.dataset.mixture import Mixture, MixtureBatches, MixturePart
from dynapipe_hpc.data.dataset.sampler import TokenBudgetSampler
from dynapipe_hpc.data.errors import InputError
from dynapipe_hpc.data.sample import Sample
from dynapipe_hpc.data.token_block import TokenBlock, TokenizedSample

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
    return [Mixed([1] * part.n_samples, part.rate, part.epochs) for part in mixture.parts]


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
    assert hot.parts[0].rate == pytest.approx(10 / (10 + 2**20), rel=1e-4)
    capped = mixture_of(sizes, mixture_temperature=2, mixture_cap=10_000)
    assert [part.rate for part in capped.parts] == pytest.approx([1 / 11, 10 / 11])


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
        tuple(
            MixturePart(str(i), len(each.tokens), sum(each.tokens), each.rate, each.epochs)
            for i, each in enumerate(datasets)
        )
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


MORE = [([7] * 9, [8, 9], "sum"), ([2], [4, 9], "product")]


def joined(folder: Path) -> JoinedDatasets:
    one = write_samples(folder / "one.h5", SAMPLES)
    two = write_samples(folder / "two.h5", MORE)
    return JoinedDatasets({"first": DatasetFile(one), "second": DatasetFile(two)})


def config_of(**settings: object) -> DataConfig:
    mixed = [{"dataset": "one.h5"}, {"dataset": "two.h5"}]
    tables = {"mixture": mixed, "max_tokens": 8, "tokens_per_batch": 8, **settings}
    return DataConfig.model_validate(tables)


def test_samples_of_all_datasets_are_numbered_one_after_the_other(tmp_path: Path) -> None:
    dataset = joined(tmp_path)
    everything = [*SAMPLES, *MORE]
    for i, (inputs, targets, _) in enumerate(everything):
        lengths = dataset.input_lengths[i], dataset.target_lengths[i]
        assert lengths == (len(inputs), len(targets))
        found = dataset.read(Sample(i, len(inputs), len(targets)))
        assert [side.tolist() for side in found[:2]] == [inputs, targets]
    assert (dataset.header.vocab_size, dataset.header.eos_id) == (10, 9)
    assert len(dataset.task_ids) == len(everything)


def test_equal_names_of_tasks_in_two_datasets_are_two_tasks(tmp_path: Path) -> None:
    dataset = joined(tmp_path)
    tasks = [dataset.header.task_names[i] for i in dataset.task_ids]
    assert tasks == ["first/sum", "first/copy", "first/sum", "second/sum", "second/product"]


def test_every_dataset_loses_its_own_long_samples(tmp_path: Path) -> None:
    dataset, config = joined(tmp_path), config_of(long_samples="drop", max_tokens=4)
    used = used_of(dataset, config)
    assert used.kept.tolist() == [1, 4]
    assert list(describe_long(dataset, config)) == [
        "one: 2 of 3 samples are longer than data.max_tokens (4): 2 are left out "
        "(data.long_samples = 'drop'); 10 of 11 tokens are not used",
        "two: 1 of 2 samples are longer than data.max_tokens (4): 1 are left out "
        "(data.long_samples = 'drop'); 11 of 14 tokens are not used",
    ]
    with pytest.raises(InputError, match=r"all 2 samples of 'two.h5' are longer"):
        used_of(dataset, config_of(long_samples="drop", max_tokens=2))


@pytest.mark.parametrize(
    ("change", "told"),
    [
        ({"tokenizer_sha256": "cd" * 32}, f"two.h5 has tokenizer_sha256 = {'cd' * 32}"),
        ({"vocab_size": 11}, "two.h5 has vocab_size = 11"),
        ({"eos_id": 3}, "two.h5 has eos_id = 3"),
    ],
)
def test_tokens_of_another_tokenizer_are_refused(
    tmp_path: Path, change: dict[str, Any], told: str
) -> None:
    one, two = write_samples(tmp_path / "one.h5"), tmp_path / "two.h5"
    with DatasetWriter.create(two, replace(header(), **change)) as writer:
        writer.append(TokenBlock.from_samples(list(starmap(TokenizedSample, SAMPLES)), 10))
    with pytest.raises(InputError, match=told):
        JoinedDatasets({"one": DatasetFile(one), "two": DatasetFile(two)})


def test_a_sample_is_read_after_the_start_token_of_its_dataset(tmp_path: Path) -> None:
    chat = [([7, 2, 4], [3, 9], "sum")]
    one = DatasetFile(write_samples(tmp_path / "one.h5", SAMPLES[:1], spans=[[(1, 2), (3, 5)]]))
    spans = [[(0, 2), (3, 5)]]
    two = DatasetFile(write_samples(tmp_path / "two.h5", chat, spans=spans, has_start=False))
    dataset = JoinedDatasets({"one": one, "two": two})
    assert dataset.header.start_id is None
    assert [dataset.read(Sample(i, 2, 1)).start for i in range(2)] == [9, 7]
    inputs, targets, *_ = dataset.read(Sample(1, 2, 2))
    assert (inputs.tolist(), targets.tolist()) == ([2, 4], [3, 9])
    assert [dataset.predicted_spans.of_sample(i) for i in range(2)] == [
        [(1, 2), (3, 5)],
        [(0, 1), (2, 4)],
    ]
    assert JoinedDatasets({"one": one, "other": one}).header.start_id == 9
