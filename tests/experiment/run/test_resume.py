"""The iteration at which a run starts again, and the checkpoints that it continues from."""

from pathlib import Path

import pytest
from tests.examples.tokenized import SAMPLES, write_samples
from tests.jobs.tiny_experiment import tiny_experiment

from dynapipe_hpc.architecture.lora import Lora
from dynapipe_hpc.data.errors import InputError
from dynapipe_hpc.experiment.experiment import Experiment
from dynapipe_hpc.experiment.load import to_toml
from dynapipe_hpc.experiment.run.resume import (
    ResumePoint,
    check_facts,
    facts_of,
    facts_of_run,
    facts_of_start,
    n_repeatable,
)
from dynapipe_hpc.training.checkpoint.folder import Description, Facts
from dynapipe_hpc.training.counters import Counters
from dynapipe_hpc.training.huggingface.origin import HASH_FACT

LORA: Facts = {"model.lora": Lora().model_dump()}  # type: ignore[dict-item]


def test_a_run_that_ended_before_its_first_checkpoints_is_begun_again(tmp_path: Path) -> None:
    config = tiny_experiment()
    checkpoint = config.checkpoint.model_copy(update={"every": 3})
    config = config.model_copy(update={"checkpoint": checkpoint})
    (tmp_path / "config.toml").write_text(to_toml(config))
    assert n_repeatable(tmp_path, config) == 6


def test_a_run_on_preferences_continues_though_the_model_it_began_with_has_gone_on() -> None:
    current = {**facts_of(tiny_experiment()), HASH_FACT: "now"}
    point = ResumePoint(
        Path("old"), Description(1, Counters(0, 0, 1.0, 0, 0), {**current, HASH_FACT: "then"}, ())
    )
    check_facts(point.path, point.description.facts, current)
    assert facts_of_start(current, point) == {**current, HASH_FACT: "then"}
    assert facts_of_start(current, None) == current
    with pytest.raises(InputError, match=f"was written with {HASH_FACT} = 'then'"):
        adapted = {**current, **LORA}
        check_facts(point.path, {**adapted, HASH_FACT: "then"}, adapted)


def facts_with(path: Path, **data: object) -> dict[str, str | int | float | bool | None]:
    config = tiny_experiment()
    changed = config.data.model_copy(update={"dataset": str(path), **data})
    return dict(facts_of_run(Experiment(config.model_copy(update={"data": changed}))))


def test_a_dataset_with_other_tokens_of_equal_lengths_is_refused(tmp_path: Path) -> None:
    stored = facts_with(write_samples(tmp_path / "one.h5"))
    check_facts(Path("old"), stored, facts_with(write_samples(tmp_path / "same.h5")))
    (_, target, task), *rest = SAMPLES
    other = facts_with(write_samples(tmp_path / "other.h5", [([1, 2, 4], target, task), *rest]))
    key = "the hash of the tokens of data.dataset"
    with pytest.raises(InputError, match=f"was written with {key} = "):
        check_facts(Path("old"), stored, other)


def test_what_was_stored_is_named_rather_than_what_follows_from_it() -> None:
    stored: Facts = {"data.max_tokens": 32}
    current: Facts = {"data.long_samples": "drop", "data.max_tokens": 4}
    with pytest.raises(InputError, match=r"data\.max_tokens = 32, but now it is 4; restore"):
        check_facts(Path("old"), stored, current)
