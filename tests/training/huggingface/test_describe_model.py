"""Descriptions of models on disk."""

from pathlib import Path

import pytest
from tests.examples.small_models import LLAMA, llama_tensors, write_model

from dynapipe_hpc.data.errors import InputError
from dynapipe_hpc.training.huggingface.describe_model import describe_model


def test_a_description_refuses_files_that_are_not_as_long_as_they_say(tmp_path: Path) -> None:
    folder = write_model(tmp_path / "model", LLAMA, llama_tensors())
    assert 'family = "llama"' in describe_model(folder)
    file = folder / "model.safetensors"
    content = file.read_bytes()
    for other in (content[:-100], content + b"0", content[:50]):
        file.write_bytes(other)
        message = (
            rf"is not a complete safetensors file \({len(other):,} bytes: .*\); fetch it again"
        )
        with pytest.raises(InputError, match=f"model.safetensors: {message}"):
            describe_model(folder)
