"""Training on preference pairs: its configuration, and the reference before a run computes it."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tomli_w
from pydantic import ValidationError
from tests.examples.small_models import LLAMA, llama_tensors, write_model
from tests.examples.tokenized import PAIRS, write_pairs, write_samples
from tests.jobs.tiny_experiment import tiny_experiment

from dynapipe_hpc.data.dataset.dataset_file import DatasetFile
from dynapipe_hpc.data.errors import InputError
from dynapipe_hpc.experiment.checks import check_weights
from dynapipe_hpc.experiment.config import ExperimentConfig
from dynapipe_hpc.experiment.experiment import Experiment, check_pairs
from dynapipe_hpc.experiment.load import ConfigError, load_config, to_toml
from dynapipe_hpc.experiment.run.evaluations import ReferenceFile, reference_passes
from dynapipe_hpc.experiment.run.resume import facts_of, facts_of_run
from dynapipe_hpc.training.config import PreferenceLossConfig, TrainingConfig
from dynapipe_hpc.training.huggingface.origin import find_origin

Tables = dict[str, Any]


def tables(**changes: Tables) -> Tables:
    """Of a configuration that trains on pairs."""
    values = tiny_experiment().model_dump()
    values["training"] |= {"objective": "dpo"}
    values["model"] |= {"init_from": "first"}
    values["planner"]["batch"] |= {"layouts": ["packed"]}
    for name, table in changes.items():
        values[name] |= table
    return values


def batch(**settings: Any) -> Tables:
    return {"batch": {"rule": "dynamic", "layouts": ["packed"], **settings}}


@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"data": {"loss_on": "targets"}},
        {"planner": {"batch": {"rule": "packed_balanced"}}},
        {"training": {"objective": "ipo"}},
    ],
)
def test_a_configuration_may_train_on_pairs(changes: dict[str, Tables]) -> None:
    assert ExperimentConfig.model_validate(tables(**changes)).training.preference_loss


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"planner": batch(layouts=["padded", "packed"])}, "only packed rows hold pref"),
        ({"planner": {"batch": {"rule": "token_budget"}}}, "only packed rows hold pref"),
        ({"planner": batch(slices=512)}, "preference pairs cannot be cut into slices"),
        (
            {"data": {"long_samples": "cut_input_end"}},
            'answers follow from the end of a prompt; set it to "cut_input"',
        ),
        ({"data": {"loss_on": "all"}}, 'data.loss_on is "all", and only answers are compared'),
        (
            {"data": {"dataset": None, "lengths": {"n_samples": 10}}},
            r"\[data.lengths\] draws no preference pairs",
        ),
        (
            {"training": {"objective": "cross_entropy", "preferences": {"beta": 0.3}}},
            'preferences are set, but objective is "cross_entropy"',
        ),
        (
            {"training": {"objective": "ipo", "preferences": {"label_smoothing": 0.1}}},
            'label_smoothing .* has no effect on objective = "ipo"',
        ),
    ],
)
def test_what_pairs_cannot_have_is_refused(changes: dict[str, Tables], message: str) -> None:
    with pytest.raises(ValidationError, match=message):
        ExperimentConfig.model_validate(tables(**changes))


def test_a_run_needs_a_model_to_begin_with() -> None:
    files = Experiment(ExperimentConfig.model_validate(tables(model={"init_from": None})))
    with pytest.raises(InputError, match=r"no model\.init_from, whose weights are the ref"):
        check_weights(files)


@pytest.mark.parametrize("model", [{}, {"vocab_size": 40}])
def test_sizes_are_not_missed_where_the_model_to_begin_with_is(
    tmp_path: Path, model: Tables
) -> None:
    path = tmp_path / "c.toml"
    path.write_text(tomli_w.dumps(_without_none(tables() | {"model": model})))
    message = (
        r'c\.toml: training\.objective is "dpo", but there is no model\.init_from, .* name the'
    )
    with pytest.raises(ConfigError, match=message):
        load_config(path)
    with pytest.raises(ConfigError, match=r"model\.n_layers is missing"):
        load_config(path, ["training.objective='cross_entropy'"])


def _without_none(table: Tables) -> Tables:
    return {
        key: _without_none(value) if isinstance(value, dict) else value
        for key, value in table.items()
        if value is not None
    }


def test_ipo_counts_per_token_unless_told_otherwise() -> None:
    def loss(**settings: Any) -> PreferenceLossConfig | None:
        return TrainingConfig(iterations=1, **settings).preference_loss

    assert loss() is None
    assert loss(objective="dpo") == PreferenceLossConfig("dpo", 0.1)
    assert loss(objective="ipo") == PreferenceLossConfig("ipo", 0.1, per_token=True)
    assert loss(objective="ipo", preferences={"per_token": False}) == PreferenceLossConfig(
        "ipo", 0.1
    )


def test_a_run_continues_with_prompts_cut_at_the_same_end_and_the_same_loss(tmp_path: Path) -> None:
    data = {"dataset": str(write_pairs(tmp_path / "p.h5")), "max_tokens": 7}
    config = ExperimentConfig.model_validate(tables(data=data, model={"init_from": None}))
    facts = facts_of_run(Experiment(config))
    assert facts["data.long_samples"] == "cut_input"
    assert facts["training.objective"] == "dpo"
    assert facts["training.preferences.beta"] == 0.1
    assert "training.preferences.beta" not in facts_of(tiny_experiment())


def test_datasets_of_the_other_kind_are_refused(tmp_path: Path) -> None:
    pairs, samples = write_pairs(tmp_path / "p.h5"), write_samples(tmp_path / "s.h5")
    training, plain = ExperimentConfig.model_validate(tables()), tiny_experiment()
    for config, path, message in (
        (plain, pairs, r"p\.h5: holds preference pairs, but training.objective is .cross_entropy"),
        (training, samples, r"s\.h5: holds no preference pairs, which training.objective = "),
    ):
        with DatasetFile(path) as dataset, pytest.raises(InputError, match=message):
            check_pairs(config, dataset)
    for config, path in ((plain, samples), (training, pairs)):
        with DatasetFile(path) as dataset:
            check_pairs(config, dataset)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A folder with pairs, a model, and a configuration that trains it on them."""
    write_pairs(tmp_path / "pairs.h5", PAIRS * 8)
    write_model(tmp_path / "model", LLAMA, llama_tensors())
    values = tiny_experiment().model_dump(exclude_none=True)
    values["data"] |= {
        "dataset": str(tmp_path / "pairs.h5"),
        "max_tokens": 16,
        "tokens_per_batch": 16,
    }
    values["model"] = load_sizes(tmp_path / "model")
    values["planner"]["batch"] = {"rule": "dynamic", "layouts": ["packed"]}
    values["training"] |= {"objective": "dpo"}
    (tmp_path / "config.toml").write_text(to_toml(ExperimentConfig.model_validate(values)))
    return tmp_path


def load_sizes(model: Path) -> dict[str, Any]:
    return {**find_origin(model).values, "init_from": str(model)}


def opened(folder: Path) -> Experiment:
    return Experiment(load_config(folder / "config.toml")).open()


def test_what_is_missing_is_batches_of_which_some_pair_is_unknown(folder: Path) -> None:
    experiment = opened(folder)
    (reference,) = reference_passes(experiment, experiment.weights_hash, folder / "run")
    known = reference.file.read()
    batches = reference.missing(known)
    assert sum(map(len, batches)) == sum(map(len, reference.batches)) == 24
    known[:1] = -1  # of a batch of two
    assert reference.missing(known) == batches
    known[: len(PAIRS)] = -1
    assert 0 < sum(map(len, reference.missing(known))) < 24
    known[:] = -1
    assert reference.missing(known) == []


def test_numbers_come_back_bit_by_bit_and_unknown_ones_are_nan(tmp_path: Path) -> None:
    file = ReferenceFile(tmp_path / "x.h5.reference", "ab" * 32, 3)
    assert np.isnan(file.read()).tolist() == [[True, True]] * 3
    known = np.array([[-0.1, -1e-300], [np.nan, np.nan], [-3.0, -4.0]])
    file.write(known)
    assert [path.name for path in tmp_path.iterdir()] == ["x.h5.reference"]
    assert file.read().tobytes() == known.tobytes()


def test_a_damaged_or_other_file_is_refused(tmp_path: Path) -> None:
    file = ReferenceFile(tmp_path / "x.h5.reference", "ab" * 32, 2)
    file.write(np.zeros((2, 2)))
    good = file.path.read_bytes()
    longer = ReferenceFile(file.path, file.fingerprint, 3)
    other = ReferenceFile(file.path, "ab" * 31 + "cd", 2)
    message = "is damaged, or belongs to other data or another model"
    for reader in (longer, other):
        with pytest.raises(InputError, match=message):
            reader.read()
    for bad in (b"", b"{}", good[:-1], good[:-3] + b"abc", b"no json\n" + good):
        file.path.write_bytes(bad)
        with pytest.raises(InputError, match="remove it, and it is computed again"):
            file.read()
