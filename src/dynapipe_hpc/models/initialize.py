"""Initial weights; every rank draws only its own part."""

import hashlib
import math
from collections.abc import Callable
from itertools import pairwise

import torch
from torch import Tensor, nn

from dynapipe_hpc.models.sharding.sharded_linear import LORA_A, LORA_B
from dynapipe_hpc.models.sharding.shards import WHOLE, Split, splits_of

STANDARD_DEVIATION = 0.02
DRAWN_AT_ONCE = 1 << 22
"""Maximum count of numbers drawn at once, unless a single row has more."""
GROUP = 16
"""Number of numbers that torch draws in one step."""

Deviation = Callable[[str, torch.Size], float]  # takes a weight's name and shape


def initialize(module: nn.Module, seed: int, deviation_of: Deviation) -> None:
    """Sets every weight from its own random stream, which its name and the seed choose.

    A weight with the same name starts with the same bits on any number of stages. If it is cut
    over shards, each shard draws its part from a stream of its own, so that no rank draws numbers
    that another rank holds. Weights are normal; biases start at zero, scales of norms at one.
    Adapters start with the same bits on any number of shards: each draws all of A, and B is zero.
    """
    splits = splits_of(module)
    with torch.no_grad():
        for name, parameter in module.named_parameters():
            if parameter.is_meta:  # without numbers, and drawing takes long
                continue
            split = splits.get(name, WHOLE)
            shape = split.whole_shape(parameter.shape)
            if name.endswith("norm.weight"):
                parameter.fill_(1)
            elif name.endswith(("bias", LORA_B)):
                parameter.zero_()
            elif name.endswith(LORA_A):
                # Uniform up to 1 / sqrt(inputs), as in `torch.nn.Linear` and `peft`; source: He et
                # al., "Delving Deep into Rectifiers", arXiv:1502.01852, with the slope sqrt(5).
                stream = _stream(seed, name, WHOLE)
                drawn = torch.rand(shape, generator=stream, dtype=torch.float32)
                parameter.copy_(split.part_of((2 * drawn - 1) / math.sqrt(shape[1])))
            else:
                _draw(parameter, split, _stream(seed, name, split), deviation_of(name, shape))


def gpt_deviation(n_layers: int) -> Deviation:
    """Standard deviations as in GPT-2: smaller for weights that write to the residual stream.

    They are divided by the square root of the number of such weights, two in each layer.
    """

    def deviation_of(name: str, _: torch.Size) -> float:
        writes_to_stream = name.endswith("output.weight")
        return STANDARD_DEVIATION / (math.sqrt(2 * n_layers) if writes_to_stream else 1)

    return deviation_of


def _draw(parameter: Tensor, split: Split, stream: torch.Generator, deviation: float) -> None:
    """Draws a shard of a weight; its fill beyond the end of the weight is zero."""
    own = split.own_part(parameter)
    parameter.zero_()
    values = own.view(-1, own.shape[-1]) if own.ndim > 2 else own
    # One block of rows is in memory at a time, with the bits of a single draw. As torch draws 16
    # numbers at a time, and the last 16 again if the last group is not full, all blocks but the
    # last are a multiple of 16 numbers, and the last has more than 16.
    n_of_rows = DRAWN_AT_ONCE * len(values) // max(1, values.numel())
    step = max(1, n_of_rows // GROUP) * GROUP
    starts = range(0, max(1, len(values) - GROUP), step)
    for rows in (values[i:j] for i, j in pairwise([*starts, len(values)])):
        drawn = torch.randn(rows.shape, generator=stream, dtype=torch.float32)
        rows.copy_(drawn.mul_(deviation))


def _stream(seed: int, name: str, split: Split) -> torch.Generator:
    of_shard = f"/{split.shard}/{split.n_shards}" if split.n_shards > 1 else ""
    digest = hashlib.sha256(f"{seed}/{name}{of_shard}".encode()).digest()
    return torch.Generator().manual_seed(int.from_bytes(digest[:8], "little"))
