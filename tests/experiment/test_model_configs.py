from pathlib import Path

import pytest
import torch

from dynapipe_hpc.architecture.model_shape import ModelShape
from dynapipe_hpc.architecture.part import EMBEDDING, HEAD
from dynapipe_hpc.architecture.t5 import DECODER_SIDE, ENCODER_SIDE
from dynapipe_hpc.experiment.load import load_config
from dynapipe_hpc.models.family import family_of

MODELS = Path(__file__).parents[2] / "configs" / "models"


def n_parameters(shape: ModelShape) -> int:
    """Of the unsplit model."""
    parts = {kind: part.parameters for kind, part in shape.parts().items()}
    layers = sum(n * parts[kind] for kind, n in shape.layer_counts.items())
    sides = sum(parts[side] for side in (ENCODER_SIDE, DECODER_SIDE) if side in parts)
    tied = parts[EMBEDDING] - n_positions(shape) if shape.tied_head else 0
    return layers + sides + parts[EMBEDDING] + parts[HEAD] - tied


def n_positions(shape: ModelShape) -> int:
    return shape.max_tokens * shape.hidden_size if shape.family == "gpt" else 0


# As `transformers` counts those that are published under these names.
PUBLISHED = {
    "gpt2": 124_439_808,
    "gpt2_xl": 1_557_611_200,
    "llama_3_8b": 8_030_261_248,
    "llama_3.2_1b": 1_235_814_400,
    "mistral_7b": 7_248_023_552,
    "qwen2.5_7b": 7_615_616_512,
    "qwen2.5_0.5b": 494_032_768,
    "qwen3_8b": 8_190_735_360,
    "t5_small": 60_506_624,
    "t5_11b": 11_307_321_344,
    "flan_t5_xl": 2_849_757_184,
    "flan_t5_xxl": 11_135_332_352,
    "byt5_base": 581_653_248,
}


@pytest.mark.parametrize(("name", "n"), PUBLISHED.items(), ids=PUBLISHED)
def test_a_published_model_has_as_many_parameters(name: str, n: int) -> None:
    assert n_parameters(load_config(MODELS / f"{name}.toml").model) == n


OF_THE_PAPER = (
    *(f"gpt_{size}b" for size in ("3.35", "6.7", "13", "29")),
    *(f"t5_{size}b" for size in ("5.5", "11", "22", "44")),
)


@pytest.mark.parametrize("name", OF_THE_PAPER)
def test_a_model_of_the_paper_has_as_many_parameters_as_its_name_says(name: str) -> None:
    # The paper counts GPTs as if they were tied.
    shape = load_config(MODELS / f"{name}.toml").model.model_copy(update={"tied_head": True})
    billions = float(name.split("_")[1].removesuffix("b"))
    assert n_parameters(shape) == pytest.approx(1e9 * billions, rel=0.05)


@pytest.mark.parametrize("name", ["t5_5.5b", "flan_t5_xl", "byt5_base"])
def test_all_parameters_of_a_t5_are_counted(name: str) -> None:
    shape = load_config(MODELS / f"{name}.toml").model
    small = shape.model_copy(update={"hidden_size": 16, "ffn_size": 32, "n_heads": 2})
    small = small.model_copy(update={"head_size": 4, "vocab_size": 50})
    layers = range(shape.n_all_layers)
    whole = family_of(small)(small, layers, first=True, last=True, dtype=torch.float32)
    assert sum(p.numel() for p in whole.parameters()) == n_parameters(small)
