"""Decoders by `config.json` and the shapes of tensors, without `transformers`."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from tests.examples.small_models import LLAMA, N_IDS, WIDTH, llama_tensors, write_model
from torch import Tensor

from dynapipe_hpc.data.errors import InputError
from dynapipe_hpc.training.huggingface.mapping import LONGEST
from dynapipe_hpc.training.huggingface.origin import find_origin

BLOOM = {"model_type": "bloom", "architectures": ["BloomForCausalLM"], "n_layer": 2}
GEMMA = {"model_type": "gemma3", "architectures": ["Gemma3ForConditionalGeneration"]}


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        (BLOOM, "has no 'num_hidden_layers', without which no bloom is supported; choose another"),
        (
            {**GEMMA, "text_config": {"model_type": "gemma3_text"}},
            "has a 'text_config', as of a model of several media; save its text model alone",
        ),
    ],
)
def test_what_a_model_type_lacks_is_named(
    settings: dict[str, Any], message: str, tmp_path: Path
) -> None:
    (tmp_path / "config.json").write_text(json.dumps(settings))
    with pytest.raises(InputError, match=message):
        find_origin(tmp_path)


EMBEDDING, HEAD = "model.embed_tokens.weight", "lm_head.weight"
WIDER = torch.zeros(N_IDS + 1, WIDTH)


@pytest.mark.parametrize(
    ("tied", "changed", "message"),
    [
        (True, {EMBEDDING: WIDER, HEAD: None}, rf"{EMBEDDING} has the shape \[12, 8\]: by config"),
        (False, {EMBEDDING: WIDER}, rf"{EMBEDDING} has the shape \[12, 8\]: by config.json"),
        (False, {HEAD: WIDER}, rf"{HEAD} has the shape \[12, 8\]: by config.json .*: false\)"),
        (False, {HEAD: None}, rf"{HEAD} is not there: .* a tensor of the shape \[11, 8\] is"),
        (False, {EMBEDDING: None}, "the embedding is not there: by config.json"),
        (True, {EMBEDDING: None, HEAD: None}, "the embedding is not there: by config.json"),
    ],
)
def test_embedding_and_head_of_other_shapes_are_named_with_their_keys(
    tied: bool, changed: dict[str, Tensor | None], message: str, tmp_path: Path
) -> None:
    tensors = {**llama_tensors(), **changed}
    write_model(
        tmp_path,
        {**LLAMA, "tie_word_embeddings": tied},
        {name: each for name, each in tensors.items() if each is not None},
    )
    with pytest.raises(InputError, match=message):
        find_origin(tmp_path, "transformers")


def test_an_embedding_may_be_in_the_files_as_a_tied_head_only(tmp_path: Path) -> None:
    tensors = llama_tensors()
    del tensors[EMBEDDING]
    write_model(tmp_path, {**LLAMA, "tie_word_embeddings": True}, tensors)
    shape = find_origin(tmp_path, "transformers").shape
    assert shape.tied_head
    assert EMBEDDING in shape.tied


@pytest.mark.parametrize(
    ("settings", "longest"),
    [
        ({"rope_theta": 1e4}, LONGEST),
        ({"rope_parameters": {"rope_type": "default", "rope_theta": 1e4}}, LONGEST),
        ({"rope_scaling": {"type": "linear", "factor": 2.0}}, LONGEST),
        ({}, 16),
        ({"rope_scaling": {"type": "dynamic", "factor": 2.0}}, 16),
        ({"rope_scaling": {"type": "su"}, "original_max_position_embeddings": 12}, 12),
    ],
)
def test_rows_may_be_longer_where_positions_are_rotary_in_the_same_way(
    settings: dict[str, Any], longest: int, tmp_path: Path
) -> None:
    write_model(tmp_path, {**LLAMA, **settings}, llama_tensors())
    origin = find_origin(tmp_path, "transformers")
    assert origin.longest == longest
    assert origin.shape.max_tokens == min(longest, 16)
