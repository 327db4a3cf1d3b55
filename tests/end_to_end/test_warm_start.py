"""Runs that begin with the weights of another model, on real ranks."""

import json
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file
from tests.examples.checkpoint_weights import different
from tests.examples.foreign_models import saved_model
from tests.jobs.command_line import call
from tests.jobs.tuning_files import write_tuning_files
from tests.oracles.plain_run import read_checkpoint

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]

# Steps so short that no weight changes.
STILL = ["training.learning_rate=1e-30", "training.iterations=1", "data.seed=9"]


def run(folder: Path, output: str, *settings: str) -> str:
    values = [word for each in (*STILL, *settings) for word in ("--set", each)]
    return call(folder, 4, "run", "config.toml", "-o", output, *values)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a model, a run that began with it, and one that began with that run."""
    path = tmp_path_factory.mktemp("job")
    saved_model("gpt2", path / "theirs", torch.bfloat16)
    (path / "theirs/tokenizer_config.json").write_text("{}")
    write_tuning_files(path)
    call(path, None, "import", "theirs", "-o", "imported")
    run(path, "first", "cluster.n_shards=2", "cluster.n_stages=1", "cluster.zero_stage=1")
    return path


def test_shards_and_replicas_begin_with_their_parts(folder: Path) -> None:
    call(folder, None, "export", "first", "-o", "back")
    files = [folder / name / "model.safetensors" for name in ("back", "theirs")]
    assert not different(*map(load_file, files))
    assert (folder / "back/tokenizer_config.json").read_text() == "{}"


def test_an_import_begins_a_run_as_its_folder_does(folder: Path) -> None:
    told = run(
        folder,
        "of_import",
        "model.init_from=imported",
        "cluster.n_stages=4",
        "cluster.n_replicas=1",
    )
    assert "of_import: begins with the weights of imported (checkpoint after 0 iter" in told
    weights = [load_of(folder / name) for name in ("of_import", "first")]
    assert not different(*weights)


def load_of(run_folder: Path) -> dict[str, torch.Tensor]:
    found = read_checkpoint(run_folder, 1)
    return {name: tensor for name, tensor in found.items() if name.startswith("weight/")}


def test_the_optimizer_comes_along_if_asked_for(folder: Path) -> None:
    told = run(folder, "with", "model.init_from=first", "training.init_optimizer=true")
    assert "weights and the state of the optimizer of first/checkpoints/000001 (check" in told
    run(folder, "without", "model.init_from=first")
    states = {name: read_checkpoint(folder / name, 1) for name in ("first", "with", "without")}
    for name, moment in states["first"].items():
        if name.startswith("first_moment/"):
            expected = states["without"][name] + 0.9 * moment
            torch.testing.assert_close(states["with"][name], expected, rtol=1e-9, atol=1e-12)
    counters = [
        json.loads((folder / f"{name}/checkpoints/000001/checkpoint.json").read_text())["counters"]
        for name in ("with", "without")
    ]
    assert [each["n_updates"] for each in counters] == [2, 1]
    assert [each["n_steps"] for each in counters] == [1, 1]
