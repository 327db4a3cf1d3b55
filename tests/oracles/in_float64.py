"""Models of `transformers` that compute in float64 throughout.

Theirs compute norms and rotary angles in float32, whatever the type of their weights.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from importlib import import_module
from typing import Any

import pytest
import torch


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
