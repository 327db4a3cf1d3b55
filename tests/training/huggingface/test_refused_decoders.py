"""Refusals of decoders by `config.json` and the shapes of tensors, without `transformers`."""

import json
from pathlib import Path
from typing import Any

import pytest

from dynapipe_hpc.data.errors import InputError
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
