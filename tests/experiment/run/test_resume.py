"""Facts that must not change when a run continues."""

from pathlib import Path
from typing import Any

import pytest
from tests.examples.foreign_models import saved_model
from tests.examples.tokenized import SAMPLES, write_samples
from tests.jobs.tiny_experiment import tiny_experiment, with_keys

from dynapipe_hpc.architecture.lora import Lora
from dynapipe_hpc.data.errors import InputError
from dynapipe_hpc.experiment.config import ExperimentConfig
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
from dynapipe_hpc.training.huggingface.import_export import import_model
from dynapipe_hpc.training.huggingface.origin import (
    BLOCK_BYTES,
    HASH_FACT,
    find_origin,
    hash_of_weights,
)

LORA: Facts = {"model.lora": Lora().model_dump()}  # type: ignore[dict-item]


def test_a_run_that_ended_before_its_first_checkpoints_is_begun_again(tmp_path: Path) -> None:
    config = with_keys(tiny_experiment(), checkpoint={"every": 3})
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
    config = with_keys(tiny_experiment(), data={"dataset": str(path), **data})
    return dict(facts_of_run(Experiment(config)))


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


def facts(lora: dict[str, Any] | None, **cluster: int) -> dict[str, Any]:
    tables = tiny_experiment().model_dump()
    tables["model"] |= {"lora": lora}
    tables["cluster"] |= cluster
    return dict(facts_of(ExperimentConfig.model_validate(tables)))


def changed(one: dict[str, Any], other: dict[str, Any]) -> set[str]:
    return {key for key in one.keys() | other.keys() if one.get(key) != other.get(key)}


def test_adapters_stay_as_they_are() -> None:
    old = facts({"rank": 4})
    for lora in ({"rank": 5}, {"rank": 4, "alpha": 1.0}, {"rank": 4, "targets": ["up"]}):
        assert changed(old, facts(lora)) == {"model.lora"}
    assert changed(old, facts({"rank": 4})) == set()


def test_frozen_weights_are_drawn_again_alike_but_by_as_many_shards_only() -> None:
    assert changed(facts({}), facts({}, n_shards=2)) == {"cluster.n_shards"}
    assert changed(facts({}), facts({}, n_stages=1)) == set()
    assert changed(facts(None), facts(None, n_shards=2)) == set()


def test_frozen_weights_are_those_of_the_model_that_the_run_began_with(tmp_path: Path) -> None:
    write_samples(tmp_path / "data.h5", [([3, 4], [5, 6], "task")])
    for folder, name in (("one", "gpt2"), ("other", "gpt2-untied")):
        saved_model(name, tmp_path / folder)
        import_model(tmp_path / folder, tmp_path / f"{folder} imported")
    found = []
    for folder in ("one", "one", "other", "one imported", "other imported"):
        tables = tiny_experiment().model_dump()
        tables["data"] |= {"dataset": str(tmp_path / "data.h5")}
        tables["model"] |= {"lora": {}, "init_from": str(tmp_path / folder)}
        config = ExperimentConfig.model_validate(tables)
        found.append(dict(facts_of_run(Experiment(config))))
    assert changed(found[0], found[1]) == set()
    for one, other in ((0, 2), (3, 4), (0, 3)):
        key = "the hash of the weights of model.init_from"
        assert changed(found[one], found[other]) == {key}


def test_weights_that_differ_anywhere_have_another_hash(tmp_path: Path) -> None:
    saved_model("gpt2", tmp_path / "model")
    origin = find_origin(tmp_path / "model")
    file = tmp_path / "model" / "model.safetensors"
    numbers = bytes(5 * BLOCK_BYTES)
    found = []
    for kind in (numbers, numbers[:-BLOCK_BYTES] + b"1" * BLOCK_BYTES, numbers + b"0"):
        file.write_bytes(kind)
        found.append(hash_of_weights(origin))
    assert len(set(found)) == 3
