"""Adapters of a model: they are trained, and all that was there before is frozen."""

from collections.abc import Mapping, Sequence

from torch import nn

from dynapipe_hpc.architecture.lora import Lora
from dynapipe_hpc.models.sharding.sharded_linear import ColumnLinear, RowLinear


def add_adapters(module: nn.Module, linear_layers: Mapping[str, Sequence[str]], lora: Lora) -> None:
    """Freezes the weights of a module, and adds adapters without values.

    Args:
        module: Module that holds linear layers.
        linear_layers: Linear layers by name, see `ModelShape.linear_layers`.
        lora: Rank and scale of the adapters, and which layers have one.
    """
    module.requires_grad_(False)
    for path, layer in list(module.named_modules()):
        if isinstance(layer, ColumnLinear | RowLinear):
            for name, blocks in linear_layers.items():
                if path.endswith(name):
                    layer.adapt(blocks, lora)
