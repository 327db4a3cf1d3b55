"""Models of `transformers` with our weights, and adapters of `peft` beside them, by export."""

import warnings
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from safetensors.torch import load_file
from tests.oracles.in_float64 import in_float64
from torch import Tensor, nn

from dynapipe_hpc.architecture.model_shape import ModelShape
from dynapipe_hpc.training.checkpoint.folder import Description
from dynapipe_hpc.training.checkpoint.parts import StatePart, write_parts
from dynapipe_hpc.training.huggingface.import_export import NOTHING_DONE, export_model
from dynapipe_hpc.training.small_files import write_token_ids

peft = pytest.importorskip("peft", reason="needs peft: pip install '.[reference]'")

THEIR_TYPES = {"gpt": "gpt2", "llama": "llama", "t5": "t5"}


def exported(shape: ModelShape, tensors: Mapping[str, Tensor], folder: Path) -> Path:
    """A folder for `transformers`, or for `peft` if the model has adapters, in float64."""
    ours = folder / "ours"
    ours.mkdir(parents=True)
    parts = [
        StatePart(f"weight/{name}", tensor.shape, torch.Size([0] * tensor.ndim), tensor.detach())
        for name, tensor in tensors.items()
        if ("lora" in name) == (shape.lora is not None)
    ]
    facts = {f"model.{key}": value for key, value in shape.model_dump(mode="json").items()}
    Description(4, NOTHING_DONE, facts, (write_parts(ours, 0, parts),)).write(ours)
    write_token_ids(ours, shape, 0, [0])
    export_model(ours, folder / "theirs", "float64")
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


def their_losses(
    model: Any, shape: ModelShape, inputs: Sequence[int], targets: Sequence[int], start: int
) -> Tensor:
    """Cross entropies of the targets of a sample."""
    with in_float64(THEIR_TYPES[shape.family]):
        if shape.family == "t5":
            sides = [list(inputs) or [start]], [[start, *targets[:-1]]]
            ids, decoded = map(torch.tensor, sides)
            logits = model(input_ids=ids, decoder_input_ids=decoded).logits[0]
        else:
            ids = torch.tensor([[start, *inputs, *targets][:-1]])
            logits = model(input_ids=ids).logits[0, len(inputs) :]
    labels = torch.tensor(list(targets))
    return nn.functional.cross_entropy(logits, labels, reduction="none")
