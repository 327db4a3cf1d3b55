"""Models of `transformers` that compute in float64 throughout, and their losses.

Theirs compute norms and rotary angles in float32, whatever the type of their weights.
"""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from importlib import import_module
from typing import Any

import pytest
import torch
from torch import Tensor, nn


class _Wide:
    """Stands for `torch` in their modules, whose casts to float32 then go to float64."""

    float = float32 = torch.float64

    def __getattr__(self, name: str) -> Any:
        return getattr(torch, name)


@contextmanager
def in_float64(model_type: str) -> Iterator[None]:
    """Block in which models of a type are made, and computed with, in float64."""
    with pytest.MonkeyPatch.context() as patch:
        for name in (f"models.{model_type}.modeling_{model_type}", "modeling_rope_utils"):
            patch.setattr(import_module(f"transformers.{name}"), "torch", _Wide())
        patch.setattr(torch.Tensor, "float", torch.Tensor.double)
        yield


def their_losses(
    module: str, model: Any, inputs: Sequence[int], targets: Sequence[int], start: int
) -> Tensor:
    """Cross entropies of the targets of a sample, by a model of this module of theirs."""
    with in_float64(module):
        if model.config.is_encoder_decoder:
            ids, decoded = map(torch.tensor, ([list(inputs) or [start]], [[start, *targets[:-1]]]))
            logits = model(input_ids=ids, decoder_input_ids=decoded, use_cache=False).logits[0]
        else:
            ids = torch.tensor([[start, *inputs, *targets][:-1]])
            logits = model(input_ids=ids, use_cache=False).logits[0, len(inputs) :]
    labels = torch.tensor(list(targets))
    return nn.functional.cross_entropy(logits, labels, reduction="none")
