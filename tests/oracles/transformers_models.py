"""Models of `transformers` with our weights, and adapters of `peft` beside them, by export."""

import warnings
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import transformers
from safetensors.torch import load_file
from tests.examples.checkpoint_weights import write_weights
from tests.oracles.in_float64 import in_float64
from torch import Tensor, nn

from dynapipe_hpc.architecture.model_shape import ModelShape
from dynapipe_hpc.training.huggingface.import_export import export_model
from dynapipe_hpc.training.small_files import write_token_ids

peft = pytest.importorskip("peft", reason="needs peft: pip install '.[reference]'")

THEIR_TYPES = {"gpt": "gpt2", "llama": "llama", "t5": "t5"}


def exported(shape: ModelShape, tensors: Mapping[str, Tensor], folder: Path) -> Path:
    """A folder for `transformers`, or for `peft` if the model has adapters, in float64."""
    is_written = {name for name in tensors if ("lora" in name) == (shape.lora is not None)}
    write_weights(folder / "ours", shape, {name: tensors[name] for name in is_written})
    write_token_ids(folder / "ours", shape, 0, [0])
    export_model(folder / "ours", folder / "theirs", "float64")
    return folder / "theirs"


def in_their_names(
    shape: ModelShape, tensors: Mapping[str, Tensor], folder: Path
) -> dict[str, Tensor]:
    """Weights or gradients as they are stored there; those of adapters if there are any."""
    (file,) = exported(shape, tensors, folder).glob("*.safetensors")
    return load_file(file)


def their_model(shape: ModelShape, weights: Mapping[str, Tensor], folder: Path) -> Any:
    """The same model without dropout, in float64, to be computed with `in_float64`."""
    base = shape.model_copy(update={"lora": None, "dropout": 0.0})
    kind = transformers.AutoModelForCausalLM
    if shape.has_target_rows:
        kind = transformers.AutoModelForSeq2SeqLM
    with in_float64(THEIR_TYPES[shape.family]), warnings.catch_warnings():
        warnings.simplefilter("ignore", FutureWarning)  # of what peft reads of transformers
        model = kind.from_pretrained(exported(base, weights, folder / "model"))
        if shape.lora is None:
            return model
        adapters = exported(shape, weights, folder / "adapters")
        return peft.PeftModel.from_pretrained(
            model, adapters, is_trainable=True, autocast_adapter_dtype=False
        ).eval()


def trained(model: nn.Module) -> dict[str, nn.Parameter]:
    """Weights that are trained, by the names that files have."""
    named = model.named_parameters()
    return {n.replace(".default.", "."): p for n, p in named if p.requires_grad}
