"""Decoders of `transformers`: this package trains the layers of that library as they are.

A model is described by its `config.json` and by the names and shapes of its tensors, so its weights
can be counted without torch.
"""

import json
import math
import zlib
from collections.abc import Mapping
from functools import cache
from typing import Any, ClassVar, Literal

from pydantic import Field

from dynapipe_hpc.architecture.decoder import DecoderOnly
from dynapipe_hpc.architecture.part import EMBEDDING, HEAD, LAYER, Weights
from dynapipe_hpc.data.errors import InputError
from dynapipe_hpc.data.extras import optional_packages
from dynapipe_hpc.data.microbatch import Recompute

LOGITS = "lm_head.weight"
"""Name of the weights of a head that is not tied."""
NUMBER = "*"
"""Symbol for the number of a layer in names of tensors."""
ROUTERS = frozenset({"gate", "router"})
"""Names of maps that choose experts; they have no adapters, as in `peft`."""
SOURCES = frozenset({"k_proj", "v_proj"})
"""Names of maps to keys and to values."""
JOINED = "qkv_proj"
"""Name of a map to queries, keys and values together."""
TWICE = frozenset({"diffllama"})
"""Types whose layers call attention twice, with the same keys and different values."""
SLIDING = "sliding_attention"
"""Name of layers with windows, where settings list the kinds of layers."""


class TransformersShape(DecoderOnly):
    """The [model] table of any decoder of `transformers`, whose layers it runs.

    `model.init_from` names the model, and all other keys except `lora` are taken from that model.

    Attributes:
        family: Kind of model.
        model_type: Type of the model, as `config.json` names it.
        settings: Text of `config.json`, JSON on one line.
        tensors: Shapes of the weights by name; `*` stands for the number of a layer, as all layers
            have weights of the same names and shapes.
    """

    has_own_layers: ClassVar[bool] = False
    divisible_by_shards: ClassVar[tuple[str, ...]] = ()

    family: Literal["transformers"] = "transformers"
    model_type: str = Field(min_length=1)
    settings: str = Field(min_length=2, max_length=2**15)
    tensors: Mapping[str, tuple[int, ...]] = Field(min_length=1)

    @property
    def config(self) -> Any:
        """Settings as `transformers` reads them, with the defaults of their class."""
        return _config_of(self.settings)

    @property
    def embedding(self) -> str:
        """Name of the weights of the embedding; empty without one."""
        size = (self.vocab_size, self.hidden_size)
        return next(
            (n for n, shape in self.tensors.items() if tuple(shape) == size and n != LOGITS), ""
        )

    @property
    def layer_tensors(self) -> Mapping[str, tuple[int, ...]]:
        """Shapes of the weights of a layer, by their names within the layer."""
        return {
            name.partition(f".{NUMBER}.")[2]: tuple(shape)
            for name, shape in self.tensors.items()
            if f".{NUMBER}." in name
        }

    @property
    def fingerprint(self) -> Mapping[str, int]:
        checksum = zlib.crc32(self.settings.encode())
        return {**super().fingerprint, "head_size": self.head_width, "config_checksum": checksum}

    @property
    def cache_width(self) -> int:
        return 0 if self.slices_obstacle else self._source_width

    @property
    def spared_width(self) -> int:
        return self.cache_width

    @property
    def slices_obstacle(self) -> str:
        # Nor does the kernel of slices support soft caps.
        if self.pairs_obstacle:
            return self.pairs_obstacle
        if self.model_type in TWICE:
            return "layers call attention twice with different values, but a cache holds only one"
        if not self._source_width:
            return "layers have maps to keys and values with unknown names"
        return ""

    @property
    def pairs_obstacle(self) -> str:
        # The kernel by which rejected answers attend to the prompt does not support soft caps.
        cap = getattr(self.config, "attn_logit_softcapping", None)
        return f"scores have a soft cap (attn_logit_softcapping is {cap})" if cap else ""

    @property
    def window(self) -> float:
        windows = (n for n in windows_of_layers(self.config) if n and n < self.max_tokens)
        return min(windows, default=math.inf)

    @property
    def tied(self) -> Mapping[str, tuple[str, ...]]:
        return {self.embedding: (EMBEDDING, HEAD)} if self.tied_head else {}

    @property
    def linear_layers(self) -> Mapping[str, tuple[str, ...]]:
        return {
            name: (name.rpartition(".")[2],)
            for name in (each.removesuffix(".weight") for each in self._matrices())
        }

    @property
    def n_deferrable(self) -> int:
        """Number of a layer's trained numbers whose gradients a split backward pass leaves to W.

        These are the weights of linear maps, or of their adapters, but not of experts and routers.
        """
        if self.lora:
            return self._adapter_numbers()
        return sum(math.prod(shape) for shape in self._matrices().values())

    @property
    def has_relu(self) -> bool:
        """Whether layers have a ReLU, which keeps only its outputs for the backward pass."""
        return '"relu"' in self.settings

    @property
    def largest_trained(self) -> int:
        """Size of the largest trained weight of a layer, in numbers."""
        if self.lora is None:
            return max(math.prod(shape) for shape in self.layer_tensors.values())
        return max(self.lora.rank * max(shape) for shape in self._adapted())

    def deferring_kinds(self, recompute: Recompute) -> frozenset[str]:
        return frozenset({LAYER} if recompute is Recompute.NONE else ())

    def weights(self, n_shards: int = 1) -> Mapping[str, Weights]:  # noqa: ARG002 - never cut
        sizes = {name: math.prod(shape) for name, shape in self.tensors.items()}
        embedding = sizes.pop(self.embedding)
        layer = sum(math.prod(shape) for shape in self.layer_tensors.values())
        ends = sum(size for name, size in sizes.items() if f".{NUMBER}." not in name)
        head = ends + (embedding if self.tied_head else 0)
        adapters = self._adapter_numbers()
        parts = {LAYER: (layer, adapters), EMBEDDING: (embedding, 0), HEAD: (head, 0)}
        return {
            kind: Weights(n + more, n if self.lora else 0, n if kind == EMBEDDING else 0)
            for kind, (n, more) in parts.items()
        }

    def _matrices(self) -> Mapping[str, tuple[int, ...]]:
        """Shapes of the weights of a layer's linear maps; norms of heads may have two axes, too."""
        return {
            name: shape
            for name, shape in self.layer_tensors.items()
            if len(shape) == 2
            and name.endswith(".weight")
            and (module := name.split(".")[-2]) not in ROUTERS
            and "norm" not in module
        }

    @property
    def _source_width(self) -> int:
        """Width of all keys plus all values, from their projections; 0 without these."""
        n_outputs = {name.split(".")[-2]: shape[0] for name, shape in self._matrices().items()}
        apart = sum(n for name, n in n_outputs.items() if name in SOURCES)
        return apart or n_outputs.get(JOINED, self.attention_size) - self.attention_size

    def _adapted(self) -> list[tuple[int, ...]]:
        lora = self.lora
        return [
            shape
            for name, shape in self._matrices().items()
            if lora is not None and lora.adapts(name.split(".")[-2])
        ]

    def _adapter_numbers(self) -> int:
        rank = self.lora.rank if self.lora else 0
        return sum(rank * sum(shape) for shape in self._adapted())


def windows_of_layers(config: Any) -> list[int | None]:
    """Number of tokens that a token sees in each layer, by the settings; None if it sees all."""
    window = getattr(config, "sliding_window", None)
    kinds = getattr(config, "layer_types", None) or [SLIDING] * config.num_hidden_layers
    return [window if kind == SLIDING else None for kind in kinds]


def config_of(values: Mapping[str, Any]) -> Any:
    """The `transformers` configuration from values of a `config.json`."""
    with optional_packages():
        from transformers import CONFIG_MAPPING, __version__
    model_type = values.get("model_type")
    if model_type not in CONFIG_MAPPING:
        raise InputError(
            f"model_type {model_type!r} is unknown to transformers {__version__}; install a "
            "version that has it, or choose another model"
        )
    try:
        return CONFIG_MAPPING[model_type].from_dict(
            json.loads(json.dumps(values), object_hook=_float)
        )
    except Exception as error:  # the library raises many types, also when it validates settings
        raise InputError(
            f"transformers {__version__} refuses config.json of a {model_type}: {first_line(error)}"
        ) from error


@cache
def _config_of(settings: str) -> Any:
    return config_of(json.loads(settings))


def first_line(error: Exception) -> str:
    """Text of an error without the objects that `transformers` appends."""
    return str(error).partition("\n")[0]


def _float(value: dict[str, Any]) -> Any:
    return float(value["__float__"]) if value.keys() == {"__float__"} else value
