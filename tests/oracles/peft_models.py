"""Models of `transformers` with adapters of `peft`, for their losses and gradients."""

import re
import warnings
from collections.abc import Mapping, Sequence

import pytest
import torch
from tests.oracles.in_float64 import their_losses
from tests.oracles.transformers_models import (
    THEIR_TYPES,
    parts_of_map,
    state_of,
    their_model,
    their_name,
)
from torch import Tensor

from dynapipe_hpc.architecture.model_shape import ModelShape

peft = pytest.importorskip("peft", reason="needs peft: pip install '.[reference]'")


def target_modules(shape: ModelShape) -> Mapping[str, str]:
    """Theirs by the names of ours."""
    if shape.family == "gpt":
        return {
            "query_key_value": "c_attn",
            "attention_output": "attn.c_proj",
            "up": "c_fc",
            "down": "mlp.c_proj",
        }
    if shape.family == "llama":
        own = {name: f"{name[0]}_proj" for name in ("query", "key", "value")}
        others = {name: f"{name}_proj" for name in ("gate", "up", "down")}
        return {**own, "attention_output": "o_proj", **others}
    up = parts_of_map("inner", shape)
    return {"query": "q", "key": "k", "value": "v", "attention_output": "o", **up, "down": "wo"}


class PeftModel:
    def __init__(self, shape: ModelShape, weights: Mapping[str, Tensor]) -> None:
        """Takes the weights of all parts and adapters, by our names."""
        assert shape.lora is not None
        self._shape = shape
        base = their_model(shape)
        base.load_state_dict(state_of({k: w for k, w in weights.items() if "lora" not in k}, shape))
        targets = target_modules(shape)
        chosen = shape.lora.targets or tuple(targets)
        config = peft.LoraConfig(
            r=shape.lora.rank,
            lora_alpha=shape.lora.alpha,
            target_modules=[targets[name] for name in chosen],
            lora_dropout=0.0,
            fan_in_fan_out=shape.family == "gpt",
        )
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", FutureWarning)  # of what peft reads of transformers
            self.model = peft.get_peft_model(base, config, autocast_adapter_dtype=False)
        self._adapters = {
            adapter_name(name, shape): (name, weight)
            for name, weight in weights.items()
            if "lora" in name
        }
        own = {k: p for k, p in self.model.named_parameters() if p.requires_grad}
        assert own.keys() == self._adapters.keys()
        with torch.no_grad():
            for name, parameter in own.items():
                parameter.copy_(self._adapters[name][1])

    def losses(self, inputs: Sequence[int], targets: Sequence[int], start: int) -> Tensor:
        """Cross entropies of the targets of a sample."""
        return their_losses(THEIR_TYPES[self._shape.family], self.model, inputs, targets, start)

    def gradients(self) -> dict[str, Tensor]:
        """Gradients of the adapters, by our names; nothing else has any."""
        found = {}
        for name, parameter in self.model.named_parameters():
            if parameter.grad is not None:
                found[self._adapters[name][0]] = parameter.grad
        return found

    def adapters(self) -> dict[str, Tensor]:
        """Values of the adapters, by our names."""
        held = dict(self.model.named_parameters())
        return {own: held[name].detach() for name, (own, _) in self._adapters.items()}


def adapter_name(name: str, shape: ModelShape) -> str:
    """Name in a model of `peft`."""
    found = re.fullmatch(r"(.*)\.adapters\.(.*)\.lora_([ab])", name)
    assert found
    layer, block, matrix = found.groups()
    path, _, last = their_name(layer, shape).rpartition(".")
    last = parts_of_map(layer.rpartition(".")[2], shape).get(block, last)
    return f"base_model.model.{path}.{last}.lora_{matrix.upper()}.default.weight"
