"""The fine-tune of a model in a folder of the user's: it can be planned before anything is read."""

import json
from pathlib import Path

import numpy as np
import pytest
from tests.examples.small_models import shapes_of
from tests.examples.tokenized import write_samples
from tests.experiment.test_cluster_configs import CONFIGS, estimated, problems

from dynapipe_hpc.cli.main import main
from dynapipe_hpc.experiment.load import load_config

FINE_TUNE = CONFIGS / "experiments" / "llama_3.2_1b_chats.toml"
PUBLISHED = CONFIGS / "models" / "llama_3.2_1b.toml"
N_IDS = 128_256
CONFIG = {
    "model_type": "llama",
    "architectures": ["LlamaForCausalLM"],
    "hidden_size": 2048,
    "intermediate_size": 8192,
    "num_hidden_layers": 16,
    "num_attention_heads": 32,
    "num_key_value_heads": 8,
    "head_dim": 64,
    "hidden_act": "silu",
    "max_position_embeddings": 131_072,
    "rms_norm_eps": 1e-5,
    "rope_theta": 500_000.0,
    "rope_scaling": {
        "factor": 32.0,
        "low_freq_factor": 1.0,
        "high_freq_factor": 4.0,
        "original_max_position_embeddings": 8192,
        "rope_type": "llama3",
    },
    "tie_word_embeddings": True,
    "torch_dtype": "bfloat16",
    "vocab_size": N_IDS,
}


@pytest.fixture
def dataset(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Conversations, in the folder from which the model is named."""
    monkeypatch.chdir(tmp_path)
    model = tmp_path / "models" / "Llama-3.2-1B-Instruct"
    model.mkdir(parents=True)
    (model / "config.json").write_text(json.dumps(CONFIG))
    write_tensors(model / "model.safetensors")
    lengths = np.exp(np.random.default_rng(1).uniform(np.log(16), np.log(2049), 300)).astype(int)
    samples = [([1] * (n // 2), [2] * (n - n // 2), "task") for n in lengths.tolist()]
    return write_samples(tmp_path / "chats.h5", samples, N_IDS, has_start=False)


def write_tensors(path: Path) -> None:
    """A file of bfloat16 tensors of the model's names and shapes, which takes no room on disk."""
    header, end = {}, 0
    for name, shape in shapes_of(CONFIG).items():
        if name == "lm_head.weight":  # which is tied
            continue
        start, end = end, end + 2 * shape.numel()
        header[name] = {"dtype": "BF16", "shape": shape, "data_offsets": (start, end)}
    text = json.dumps(header).encode()
    with path.open("wb") as file:
        file.write(len(text).to_bytes(8, "little") + text)
        file.truncate(file.tell() + end)


def test_a_fine_tune_of_a_folder_can_be_planned_from_estimates(
    dataset: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    config = estimated(FINE_TUNE, tmp_path)
    smaller = (
        *("data.tokens_per_batch=16384", "training.warmup_iterations=2"),
        "model.layers_per_stage=[4, 4, 4, 4]",
    )
    assert problems(config, dataset, *smaller) == []
    settings = (f"data.dataset={dataset}", "planner.search.effort=0", *smaller)
    assert main(["plan", str(config), *(w for s in settings for w in ("--set", s))]) == 0
    assert "estimated from peak rates" in capsys.readouterr().out


@pytest.mark.usefixtures("dataset")
def test_sizes_of_a_folder_are_those_of_the_published_model() -> None:
    published = load_config(PUBLISHED).model.model_dump(exclude_none=True)
    found = load_config(FINE_TUNE).model.model_dump()
    assert {key: found[key] for key in published} == published
