"""Models tuned by real runs and by a plain loop of torch; runs that begin with other weights."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from tests.examples.checkpoint_weights import different
from tests.examples.foreign_models import saved_model
from tests.jobs.command_line import call, call_all
from tests.jobs.tuning_files import write_tuning_files
from tests.oracles.in_float64 import in_float64
from tests.oracles.plain_run import read_checkpoint
from tests.oracles.plain_tuning import check_tuned_model

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]

TUNED = (
    *("gpt2", "t5", "t5-1.1", "t5-1.1-v5-tied", "mt5"),
    *("llama", "llama-yarn", "mistral", "qwen2", "qwen3"),
)


@pytest.fixture(scope="module")
def tuned(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder per model with what it was before, and a run that tuned it; one job for all."""
    folder = tmp_path_factory.mktemp("tuned")
    for name in TUNED:
        (folder / name).mkdir()
        theirs_of(name, folder)
        write_tuning_files(folder / name, f"{name}/")
    runs = [("run", f"{name}/config.toml", "-o", f"{name}/run") for name in TUNED]
    told = call_all(folder, 4, *runs)
    for name in TUNED:
        assert f"{name}/run: begins with the weights of {name}/theirs (" in told
    return folder


def theirs_of(name: str, folder: Path) -> Any:
    """A model of `transformers` that computes in float64, as it is in its folder."""
    with in_float64(name.partition("-")[0]):
        return saved_model(name, folder / name / "theirs", torch.float64)


@pytest.mark.parametrize("name", TUNED)
def test_tuning_gives_the_losses_and_the_model_of_a_plain_loop(
    name: str, tuned: Path, tmp_path: Path
) -> None:
    model = theirs_of(name, tmp_path)
    check_tuned_model(model, model.config.model_type, tuned / name, tmp_path / "tuned")


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
