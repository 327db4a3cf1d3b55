"""The families of models, as torch modules."""

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from pkgutil import resolve_name
from typing import Any

import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from dynapipe_hpc.architecture.lora import Lora
from dynapipe_hpc.architecture.model_shape import ModelShape
from dynapipe_hpc.data.microbatch import MicroBatch, Recompute
from dynapipe_hpc.models.attention import choose_kernels, packed_obstacle
from dynapipe_hpc.models.batch import Batch, IterationTokens, collate
from dynapipe_hpc.models.dropout import set_dropout
from dynapipe_hpc.models.initialize import Deviation, initialize
from dynapipe_hpc.models.sharding.sharded_linear import ShardedLinear
from dynapipe_hpc.models.sharding.shards import ONE_SHARD, Shards

CPU = torch.device("cpu")


class StageOfFamily(nn.Module, ABC):
    """Some consecutive layers of a model, with the embedding or the head where they belong.

    Parameters carry the names and initial values that they have in the unsplit model, which `seed`
    chooses; there may be no layers. All shards of a stage run the same passes in the same order,
    and return the same values.
    """

    def __init__(
        self,
        shape: ModelShape,
        layers: range,
        *,
        first: bool,
        last: bool,
        shards: Shards = ONE_SHARD,
        seed: int = 0,
        dtype: torch.dtype = torch.float32,
        device: torch.device = CPU,
    ) -> None:
        super().__init__()
        choose_kernels()
        # Called here, as the first call waits for the device, which no pass of an iteration may.
        packed_obstacle(shape, dtype, device)
        self.is_first, self.is_last, self.drops = first, last, shape.dropout_rate > 0
        self.has_kv_cache = shape.cache_width > 0
        with UnsetWeights(dtype, device):
            self.build(shape, layers, shards)
            if shape.lora:
                add_adapters(self, shape.linear_layers, shape.lora)
        if shape.dropout_rate:
            set_dropout(self, shape.dropout_rate, seed)
        initialize(self, seed, self.deviation(shape))

    @classmethod
    def layer_kinds(cls, shape: ModelShape) -> Sequence[tuple[ModelShape, float]]:
        """A model per kind of layer, with layers of that kind only, and the kind's share of layers.

        Layers of the same part of a model may take different times, for example with windows.
        """
        return [(shape, 1.0)]

    @abstractmethod
    def build(self, shape: ModelShape, layers: range, shards: Shards) -> None:
        """Adds the modules of the stage, without values."""

    @abstractmethod
    def deviation(self, shape: ModelShape) -> Deviation:
        """Standard deviations of initial weights."""

    def collate(self, microbatch: MicroBatch, tokens: IterationTokens) -> Batch:
        """The batch of a micro-batch that `run` takes; by default, for a decoder-only model."""
        return collate(microbatch, tokens, reads=self.is_first or self.is_last, drops=self.drops)

    @abstractmethod
    def run(self, activation: Tensor | None, batch: Batch, recompute: Recompute) -> Tensor:
        """Runs the stage on a micro-batch that `collate` made, after the stage before (if any).

        Returns the activation for the next stage; on the last stage, the losses of predictions,
        shape (rows, tokens), or logits if the batch has no labels.
        """


_STAGES = {
    "gpt": "decoder:DecoderStage",
    "llama": "decoder:DecoderStage",
    "t5": "t5:T5Stage",
    "transformers": "transformers.stage:TransformersStage",
}


def family_of(shape: ModelShape) -> type[StageOfFamily]:
    """Stage class of a model, whose file is loaded on first use."""
    stage: type[StageOfFamily] = resolve_name(f"{__package__}.{_STAGES[shape.family]}")
    return stage


class UnsetWeights(TorchFunctionMode):
    """Mode in which `torch.empty` makes weights of one type on one device, and none are drawn.

    A type or device given by a call, or by another such mode inside, takes precedence.

    Unlike construction on the device `meta`, this does not import torch's compiler, which takes
    seconds of processor time at the start of every rank.
    """

    def __init__(self, dtype: torch.dtype, device: torch.device) -> None:
        super().__init__()
        self._options = {"dtype": dtype, "device": device}

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if getattr(func, "__module__", "") == "torch.nn.init":
            return kwargs["tensor"] if "tensor" in kwargs else args[0]
        if func is torch.empty:
            # A mode inside this one, or a module, may have chosen other options.
            given = {name: value for name, value in kwargs.items() if value is not None}
            kwargs = kwargs | self._options | given
        return func(*args, **kwargs)


def add_adapters(module: nn.Module, linear_layers: Mapping[str, Sequence[str]], lora: Lora) -> None:
    """Freezes the weights of a module, and adds uninitialized adapters."""
    module.requires_grad_(False)
    for path, layer in list(module.named_modules()):
        if isinstance(layer, ShardedLinear):
            for name, blocks in linear_layers.items():
                if path.endswith(name):
                    layer.adapt(blocks, lora)
