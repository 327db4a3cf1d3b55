"""Initial weights that do not depend on how a model is split."""

import hashlib
import math

import torch
from torch import Tensor, nn

from dynapipe_hpc.models.split import WHOLE, splits_of

STANDARD_DEVIATION = 0.02


def initialize(module: nn.Module, seed: int, n_layers: int) -> None:
    """Sets every weight from its own random stream, which its name and the seed choose.

    A weight with the same name starts with the same bits on any number of stages and shards: it
    is drawn whole, and a shard takes its part. Weights are drawn as in GPT-2: normal, those that
    write to the residual stream scaled down by the square root of how many do; biases start at
    zero, scales of norms at one.

    Args:
        module: Its parameter names are those of the unsplit model.
        seed: Of the whole model.
        n_layers: Of the whole model; each writes to the residual stream twice.
    """
    splits = splits_of(module)
    with torch.no_grad():
        for name, parameter in module.named_parameters():
            split = splits.get(name, WHOLE)
            shape = split.whole_shape(parameter.shape)
            parameter.copy_(split.part_of(_initial_value(name, shape, seed, n_layers)))


def _initial_value(name: str, shape: torch.Size, seed: int, n_layers: int) -> Tensor:
    if name.endswith("norm.weight"):
        return torch.ones(shape)
    if name.endswith("bias"):
        return torch.zeros(shape)
    deviation = STANDARD_DEVIATION
    if name.endswith("output.weight"):
        deviation /= math.sqrt(2 * n_layers)
    return torch.randn(shape, generator=_stream(seed, name), dtype=torch.float32) * deviation


def _stream(seed: int, name: str) -> torch.Generator:
    digest = hashlib.sha256(f"{seed}/{name}".encode()).digest()
    return torch.Generator().manual_seed(int.from_bytes(digest[:8], "little"))
