"""The reference of a run: which pairs it lacks, and its file."""

import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.examples.small_models import LLAMA, llama_tensors, write_model
from tests.examples.tokenized import PAIRS, write_pairs
from tests.jobs.tiny_experiment import tiny_experiment

from dynapipe_hpc.data.errors import InputError
from dynapipe_hpc.experiment.config import ExperimentConfig
from dynapipe_hpc.experiment.experiment import Experiment
from dynapipe_hpc.experiment.load import load_config, to_toml
from dynapipe_hpc.experiment.reference_pass import (
    ReferenceFile,
    reference_passes,
)
from dynapipe_hpc.training.huggingface.origin import find_origin


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
    assert sum(map(len, batches)) == reference.n_pairs == 24
    known[:1] = -1  # of a batch of two
    assert reference.missing(known) == batches
    known[: len(PAIRS)] = -1
    assert 0 < sum(map(len, reference.missing(known))) < 24
    known[:] = -1
    assert reference.missing(known) == []


def test_where_the_folder_of_the_dataset_is_not_writable_it_is_in_the_run_folder(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    experiment, run = opened(folder), folder / "run"
    weights_hash, access = experiment.weights_hash, os.access
    (beside,) = reference_passes(experiment, weights_hash, run)
    assert beside.file.path.parent == folder
    known = beside.file.read()
    known[:5] = -1
    beside.file.write(known)
    with monkeypatch.context() as read_only:  # as a mount, also for root
        read_only.setattr("os.access", lambda path, mode: path != folder and access(path, mode))
        run.mkdir()
        (own,) = reference_passes(experiment, weights_hash, run)
        assert own.file.path.parent == run
        assert own.file.read()[:5].tolist() == [[-1, -1]] * 5  # what is known beside the dataset
        known[:] = -2
        own.file.write(known)
    assert "first iteration, and copy it from there" in str(own.lack_error())
    assert str(beside.lack_error()).endswith("that run makes it before its first iteration")
    # Where that folder can be written again, the run goes on with its own.
    (own,) = reference_passes(experiment, weights_hash, run)
    assert (own.file.read() == -2).all()
    assert beside.file.read()[5:].tolist() != own.file.read()[5:].tolist()


def test_numbers_come_back_bit_by_bit_and_unknown_ones_are_nan(tmp_path: Path) -> None:
    file = ReferenceFile.from_dataset(tmp_path / "x.h5", "ab" * 32, 3)
    assert np.isnan(file.read()).tolist() == [[True, True]] * 3
    known = np.array([[-0.1, -1e-300], [np.nan, np.nan], [-3.0, -4.0]])
    file.write(known)
    assert [path.name for path in tmp_path.iterdir()] == ["x.h5.abababababababab.reference"]
    assert file.read().tobytes() == known.tobytes()


def test_a_damaged_or_other_file_is_refused(tmp_path: Path) -> None:
    file = ReferenceFile.from_dataset(tmp_path / "x.h5", "ab" * 32, 2)
    file.write(np.zeros((2, 2)))
    good = file.path.read_bytes()
    longer = ReferenceFile(file.path, file.fingerprint, 3)
    other = ReferenceFile(file.path, "ab" * 31 + "cd", 2)
    for reader in (longer, other):
        with pytest.raises(InputError, match="is damaged, or of other samples or another model"):
            reader.read()
    for bad in (b"", b"{}", good[:-1], good[:-3] + b"abc", b"no json\n" + good):
        file.path.write_bytes(bad)
        with pytest.raises(InputError, match="remove it, and it is computed again"):
            file.read()
