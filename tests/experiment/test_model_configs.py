"""The models of the paper have as many parameters as their names say."""

from dataclasses import dataclass
from pathlib import Path

import pytest
import torch
from tests.examples.training_case import UNEVEN_SHAPE, UNEVEN_T5_SHAPE

from dynapipe_hpc.architecture.part import EMBEDDING, HEAD, LAYER
from dynapipe_hpc.architecture.t5 import DECODER, DECODER_SIDE, ENCODER, ENCODER_SIDE
from dynapipe_hpc.experiment.load import load_config
from dynapipe_hpc.models.family import family_of
from dynapipe_hpc.models.sharding.shards import OneShard
from dynapipe_hpc.plan.model_shape import ModelShape

MODELS = Path(__file__).parents[2] / "configs" / "models"


def n_parameters(shape: ModelShape) -> int:
    """Of the unsplit model, as the paper counts: logits have the embedding's weights."""
    parts = {kind: part.parameters for kind, part in shape.architecture.parts().items()}
    if not shape.architecture.has_target_rows:
        return shape.n_layers * parts[LAYER] + parts[EMBEDDING]
    sides = parts[ENCODER_SIDE] + parts[DECODER_SIDE]
    return shape.n_layers * (parts[ENCODER] + parts[DECODER]) + sides + parts[HEAD]


@pytest.mark.parametrize("path", sorted(MODELS.glob("*b.toml")), ids=lambda path: path.stem)
def test_a_model_has_as_many_parameters_as_its_name_says(path: Path) -> None:
    billions = float(path.stem.split("_")[1].removesuffix("b"))
    assert n_parameters(load_config(path).model) == pytest.approx(1e9 * billions, rel=0.05)


def test_all_models_of_the_paper_are_there() -> None:
    assert {path.stem for path in MODELS.glob("*b.toml")} == {
        *(f"gpt_{size}b" for size in ("3.35", "6.7", "13", "29")),
        *(f"t5_{size}b" for size in ("5.5", "11", "22", "44")),
    }


def test_all_parameters_of_a_t5_are_counted() -> None:
    shape = load_config(MODELS / "t5_5.5b.toml").model
    small = shape.model_copy(update={"hidden_size": 16, "ffn_size": 32, "n_heads": 2})
    small = small.model_copy(update={"head_size": 4, "vocab_size": 50})
    whole = family_of(small)(small, range(24), first=True, last=True, dtype=torch.float32)
    assert sum(p.numel() for p in whole.parameters()) == n_parameters(small)


@dataclass(frozen=True)
class OneOf(OneShard):
    """A shard that computes nothing."""

    shard: int
    n_shards: int


@pytest.mark.parametrize("shape", [UNEVEN_SHAPE, UNEVEN_T5_SHAPE], ids=lambda s: s.family)
@pytest.mark.parametrize("n_shards", [1, 2, 3])
def test_a_shard_is_counted_with_what_fills_up_its_vocabulary(
    shape: ModelShape, n_shards: int
) -> None:
    held = shape.architecture.parts(n_shards)
    parts, layers = (
        {kind: part.parameters for kind, part in held.items()},
        range(shape.n_all_layers),
    )
    sides = {ENCODER: 1, DECODER: 1, ENCODER_SIDE: 0, DECODER_SIDE: 0, LAYER: 1}
    counted = sum(n * sides.get(kind, 0) for kind, n in parts.items()) * shape.n_layers
    counted += sum(parts.get(side, 0) for side in (ENCODER_SIDE, DECODER_SIDE))
    counted += parts[HEAD] + (0 if shape.architecture.has_target_rows else parts[EMBEDDING])
    for shard in range(n_shards):
        shards = OneOf(shard, n_shards)
        module = family_of(shape)(shape, layers, first=True, last=True, shards=shards)
        assert sum(p.numel() for p in module.parameters()) == counted
