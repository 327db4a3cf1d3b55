"""Drawn lengths have the properties that are published of FLANv2 (zero-shot).

Source: Jiang et al., "DynaPipe", EuroSys 2024: mean input tokens of MNLI and CNN/DailyMail (section
1), padding of mini-batches (2.1), tokens used with a longer maximum (2.2).
"""

import hashlib
from itertools import pairwise

import numpy as np
import pytest
from tests.jobs.tiny_experiment import tiny_experiment

from dynapipe_hpc.data.errors import InputError
from dynapipe_hpc.data.multitask_lengths import TASK_KINDS, draw_lengths
from dynapipe_hpc.experiment.checks import check_run
from dynapipe_hpc.experiment.config import ExperimentConfig
from dynapipe_hpc.experiment.experiment import Experiment

LENGTHS = draw_lengths(1_000_000, seed=1)
TOKENS = LENGTHS.inputs + LENGTHS.targets


@pytest.mark.parametrize(
    ("kind", "mean"), [("language inference", 51.59), ("news summarization", 977.73)]
)
def test_inputs_of_two_tasks_have_their_published_means(kind: str, mean: float) -> None:
    index = [each.name for each in TASK_KINDS].index(kind)
    assert LENGTHS.inputs[LENGTHS.task_ids == index].mean() == pytest.approx(mean, rel=0.01)


def test_a_longer_maximum_uses_as_many_more_tokens_as_published() -> None:
    used = {most: np.minimum(TOKENS, most).sum() for most in (512, 8192)}
    assert used[8192] / used[512] == pytest.approx(1.132, abs=0.004)


@pytest.mark.parametrize("longest", [2048, 8192])
def test_naive_padding_leaves_little_of_every_mini_batch(longest: int) -> None:
    cut = np.minimum(TOKENS, longest)
    ends = np.searchsorted(np.cumsum(cut), 65_536 * np.arange(1, 100))
    real = [cut[i:j].mean() / cut[i:j].max() for i, j in pairwise(ends)]
    assert max(real) < 0.2


def test_the_same_seed_gives_the_same_bytes_everywhere() -> None:
    of_few = draw_lengths(1000, seed=1)
    assert all((a == b[:1000]).all() for a, b in zip(of_few, LENGTHS, strict=True))
    digest = hashlib.sha256(b"".join(each.astype("<i8").tobytes() for each in of_few))
    assert digest.hexdigest() == "e94483c4afbba7b948aac6e74c5b65bcc7327010b6f126ba23a2d6cb33e5daa0"
    seeds = {tuple(draw_lengths(9, seed).inputs) for seed in (0, 1, 2**32, 2**32 + 1)}
    assert len(seeds) == 4


def of_drawn_lengths(**data: object) -> ExperimentConfig:
    tables = tiny_experiment().model_dump(exclude_none=True)
    del tables["data"]["dataset"]
    tables["data"] |= {"lengths": {"n_samples": 50, "seed": 1}, **data}
    return ExperimentConfig.model_validate(tables)


def test_global_batches_hold_drawn_samples_cut_to_the_maximum() -> None:
    samples = Experiment(of_drawn_lengths()).sampler.iteration(0)
    assert {sample.tokens for sample in samples} == {32}  # nearly all samples are longer
    assert len(samples) == 256 // 32
    for sample in samples:
        assert sample.target_tokens == LENGTHS.targets[sample.sample_id]
        assert sample.task_id == LENGTHS.task_ids[sample.sample_id]


def test_drawn_lengths_are_refused_where_tokens_are_needed() -> None:
    files = Experiment(of_drawn_lengths())
    with pytest.raises(InputError, match=r"data\.lengths: .* name a dataset in data\.dataset"):
        _ = files.open().dataset
    with pytest.raises(InputError, match=r"data\.lengths: .* name a dataset in data\.dataset"):
        check_run(files, files.config.cluster.n_ranks)
    with pytest.raises(ValueError, match=r"both dataset \('a\.h5'\) and \[data\.lengths\]"):
        of_drawn_lengths(dataset="a.h5")
    with pytest.raises(InputError, match=r"samples of 'data\.lengths' are longer"):
        Experiment(of_drawn_lengths(long_samples="refuse")).sampler.iteration(0)
