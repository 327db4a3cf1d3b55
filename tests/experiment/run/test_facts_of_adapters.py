"""Facts that must not change when a run with adapters continues."""

from pathlib import Path
from typing import Any

from tests.examples.foreign_models import saved_model
from tests.examples.tokenized import write_samples
from tests.jobs.tiny_experiment import tiny_experiment

from dynapipe_hpc.experiment.config import ExperimentConfig
from dynapipe_hpc.experiment.experiment import Experiment
from dynapipe_hpc.experiment.run.resume import facts_of, facts_of_run
from dynapipe_hpc.training.huggingface.import_export import import_model
from dynapipe_hpc.training.huggingface.origin import BLOCK_BYTES, find_origin, hash_of_weights


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
