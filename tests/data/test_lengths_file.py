"""Lengths from files and of many tasks, and the [data] table."""

import hashlib
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from pydantic import ValidationError
from tests.jobs.tiny_experiment import tiny_experiment

from dynapipe_hpc.data.config import DataConfig
from dynapipe_hpc.data.errors import InputError
from dynapipe_hpc.data.lengths_file import TASK_KINDS, draw_lengths, read_lengths
from dynapipe_hpc.experiment.checks import check_run
from dynapipe_hpc.experiment.config import ExperimentConfig
from dynapipe_hpc.experiment.experiment import Experiment


def write(path: Path, content: Any) -> Path:
    path.write_text(json.dumps(content), encoding="utf-8")
    return path


def test_the_last_token_of_a_whole_sample_is_its_target(tmp_path: Path) -> None:
    path = write(tmp_path / "a.json", {"name": "a", "batches": [[5, 1], [7]]})
    assert read_lengths(path) == [[(4, 1), (0, 1)], [(6, 1)]]


def test_inputs_and_targets_may_be_apart(tmp_path: Path) -> None:
    path = write(tmp_path / "a.json", {"batches": [[5, 1]], "dec_batches": [[2, 3]]})
    assert read_lengths(path) == [[(5, 2), (1, 3)]]


def test_targets_that_a_model_needs_are_missed(tmp_path: Path) -> None:
    path = write(tmp_path / "a.json", {"batches": [[5, 1]]})
    with pytest.raises(InputError, match="has no dec_batches, the lengths of targets"):
        read_lengths(path, needs_targets=True)


LENGTHS = draw_lengths(1_000_000, seed=1)


@pytest.mark.parametrize(
    ("kind", "mean"), [("language inference", 51.59), ("news summarization", 977.73)]
)
def test_inputs_of_two_tasks_have_their_published_means(kind: str, mean: float) -> None:
    index = [each.name for each in TASK_KINDS].index(kind)
    assert LENGTHS.inputs[LENGTHS.task_ids == index].mean() == pytest.approx(mean, rel=0.01)


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
        check_run(files)
    with pytest.raises(ValueError, match=r"both dataset \('a\.h5'\) and \[data\.lengths\]"):
        of_drawn_lengths(dataset="a.h5")
    with pytest.raises(InputError, match=r"samples of 'data\.lengths' are longer"):
        Experiment(of_drawn_lengths(long_samples="refuse")).sampler.iteration(0)


def mixture(*mixed: Mapping[str, object], **settings: object) -> DataConfig:
    tables = {"mixture": mixed, "max_tokens": 8, "tokens_per_batch": 8, **settings}
    return DataConfig.model_validate(tables)


ONE, TWO = {"dataset": "a/one.h5"}, {"dataset": "b/two.h5"}


def test_datasets_of_a_mixture_are_named_like_their_files() -> None:
    config = mixture(ONE, {**TWO, "name": "chat"})
    assert [mixed.name for mixed in config.mixture or ()] == ["one", "chat"]
    assert config.paths == ("a/one.h5", "b/two.h5")
    alone = mixture(ONE, TWO, mixture_cap=3).alone("x.h5")
    assert alone == DataConfig(dataset="x.h5", max_tokens=8, tokens_per_batch=8)


@pytest.mark.parametrize(
    ("mixed", "settings", "told"),
    [
        ([], {"mixture": None}, r"no samples are named; set dataset, \[\[data.mixture\]\] tables"),
        ([ONE, TWO], {"dataset": "x.h5"}, r"both dataset \('x.h5'\) and \[\[data.mixture\]\]"),
        ([], {"mixture": None, "dataset": "x.h5", "mixture_cap": 9}, "mixture_cap is for"),
        ([ONE, {**TWO, "weight": 2}], {}, "'two' has weight = 2.0, but 'one' has none"),
        (
            [{**ONE, "weight": 1}, {**TWO, "weight": 2}],
            {"mixture_temperature": 2},
            "mixture_temperature makes rates follow .* but 'one' has weight = 1.0",
        ),
        ([ONE, {"dataset": "b/one.h5"}], {}, "two datasets have the name 'one'; set name for one"),
        ([ONE], {}, "only one .* table; write dataset = 'a/one.h5'"),
        ([ONE, {**TWO, "weight": 0}], {}, "greater than 0"),
        ([ONE, {**TWO, "name": ""}], {}, "at least 1 character"),
        ([], {"dataset": "x.h5"}, "at least 1 item"),
    ],
)
def test_a_mixture_that_says_too_little_or_too_much_is_refused(
    mixed: list[Mapping[str, object]], settings: dict[str, object], told: str
) -> None:
    with pytest.raises(ValidationError, match=told):
        mixture(*mixed, **settings)
