"""Initial weights that do not depend on how a model is split."""

import hashlib
import math
from collections.abc import Callable

import torch
from torch import Tensor, nn

from dynapipe_hpc.models.split import WHOLE, splits_of

STANDARD_DEVIATION = 0.02

Deviation = Callable[[str, torch.Size], float]  # of a weight's name and shape


def initialize(module: nn.Module, seed: int, deviation_of: Deviation) -> None:
    """Sets every weight from its own random stream, which its name and the seed choose.

    A weight with the same name starts with the same bits on any number of stages and shards: it
    is drawn whole, and a shard takes its part. Weights are normal; biases start at zero, scales
    of norms at one.

    Args:
        module: Its parameter names are those of the unsplit model.
        seed: Of the whole model.
        deviation_of: The standard deviation of a weight, by its name and shape.
    """
    splits = splits_of(module)
    with torch.no_grad():
        for name, parameter in module.named_parameters():
            split = splits.get(name, WHOLE)
            shape = split.whole_shape(parameter.shape)
            parameter.copy_(split.part_of(_initial_value(name, shape, seed, deviation_of)))


def gpt_deviation(n_layers: int) -> Deviation:
    """As in GPT-2: weights that write to the residual stream are scaled down.

    They are by the square root of how many do, two in each of the model's layers.
    """

    def deviation_of(name: str, _: torch.Size) -> float:
        writes_to_stream = name.endswith("output.weight")
        return STANDARD_DEVIATION / (math.sqrt(2 * n_layers) if writes_to_stream else 1)

    return deviation_of


def _initial_value(name: str, shape: torch.Size, seed: int, deviation_of: Deviation) -> Tensor:
    if name.endswith("norm.weight"):
        return torch.ones(shape)
    if name.endswith("bias"):
        return torch.zeros(shape)
    drawn = torch.randn(shape, generator=_stream(seed, name), dtype=torch.float32)
    return drawn * deviation_of(name, shape)


def _stream(seed: int, name: str) -> torch.Generator:
    digest = hashlib.sha256(f"{seed}/{name}".encode()).digest()
    return torch.Generator().manual_seed(int.from_bytes(digest[:8], "little"))
