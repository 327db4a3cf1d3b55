"""Real runs, computed again from dataset and checkpoints without the package's code."""

from collections.abc import Mapping
from pathlib import Path

import pytest
import torch
from tests.jobs.command_line import Tables, call, columns, write_config, write_job_files
from tests.oracles.plain_run import PlainRun, read_checkpoint

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]

TRAINING = {"dtype": "float64", "warmup_iterations": 3, "loss_weighting": "task", "seed": 5}
RUNS: Mapping[str, Tables] = {
    "gpt": {
        "data": {"seed": 2**40 + 3},
        "cluster": {"zero_stage": 1},
        "training": {**TRAINING, "clip_norm": 0.5},
        "checkpoint": {"every": 2},
    },
    "t5": {
        "data": {"max_tokens": 128},
        "model": {"family": "t5", "n_layers": 2, "head_size": 6, "max_tokens": 136},
        "cluster": {"n_replicas": 1, "n_shards": 2},
        "training": {**TRAINING, "clip_norm": 0},
        "checkpoint": {"every": 2},
    },
}


@pytest.fixture(scope="module", params=RUNS)
def folder(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the dataset corpus.h5 and a finished run of four iterations."""
    path = tmp_path_factory.mktemp(request.param)
    write_job_files(path)
    write_config(path, RUNS[request.param])
    call(path, 4, "run", "config.toml", "-o", "run")
    return path


@pytest.mark.parametrize("n_done", [0, 2])
def test_losses_norms_rates_and_weights_are_those_of_the_documents(
    folder: Path, n_done: int
) -> None:
    run = PlainRun(folder / "run", folder / "corpus.h5")
    expected = read_checkpoint(folder / "run", n_done + 2)
    if n_done:
        run.resume(n_done)
    else:
        shapes = {name: tensor.shape for name, tensor in expected.items()}
        run.begin({n.removeprefix("weight/"): s for n, s in shapes.items() if "weight/" in n})
    found = zip(run.step(), run.step(), strict=True)
    told = columns(folder / "run", "loss", "gradient_norm", "learning_rate")
    for values, recorded in zip(found, told, strict=True):
        assert list(values) == pytest.approx(recorded[n_done : n_done + 2], rel=1e-12)
    assert run.tensors.keys() == expected.keys()
    for name, tensor in expected.items():
        torch.testing.assert_close(run.tensors[name], tensor, rtol=1e-12, atol=1e-12, msg=name)
