"""Published models can be planned and tuned before anything was measured on a machine."""

from pathlib import Path

import numpy as np
import pytest
import tomli_w
from tests.examples.tokenized import write_samples

from dynapipe_hpc.cli.main import main
from dynapipe_hpc.experiment.load import load_config

CONFIGS = Path(__file__).parents[2] / "configs"
MODELS = (
    *("t5_small", "t5_11b", "flan_t5_xl", "flan_t5_xxl", "byt5_base"),
    *("gpt2", "gpt2_xl", "llama_3_8b", "llama_3.2_1b", "mistral_7b"),
    *("qwen2.5_7b", "qwen2.5_0.5b", "qwen3_8b"),
)


@pytest.fixture(scope="module")
def dataset(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Samples of 16 to 512 tokens, enough for a batch."""
    lengths = np.random.default_rng(1).integers(16, 513, 20).tolist()
    samples = [([1] * (n - n // 4), [2] * (n // 4), "task") for n in lengths]
    return write_samples(tmp_path_factory.mktemp("data") / "train.h5", samples)


@pytest.fixture
def config(request: pytest.FixtureRequest, tmp_path: Path, dataset: Path) -> Path:
    """A fine-tune of a model on four GPUs."""
    model = load_config(CONFIGS / "models" / f"{request.param}.toml").model
    tables = {
        "extends": str(CONFIGS / "clusters" / "h200_1x4.toml"),
        "data": {"dataset": str(dataset), "max_tokens": 512, "tokens_per_batch": 1024},
        "model": model.model_dump(exclude_none=True),
        "planner": {"batch": {"rule": "dynamic"}, "search": {"effort": 0}},
        "training": {"iterations": 2},
    }
    written = tmp_path / "fine_tune.toml"
    written.write_text(tomli_w.dumps(tables))
    return written


@pytest.mark.parametrize("config", MODELS, indirect=True)
def test_a_published_model_is_planned_from_estimates(
    config: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["plan", str(config)]) == 0
    assert "estimated from peak rates" in capsys.readouterr().out
