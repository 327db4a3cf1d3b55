"""The [model] table: what all families of models have in common."""

import math
from abc import ABC, abstractmethod
from collections.abc import Mapping
from itertools import chain
from typing import Annotated, Any, ClassVar, Self

from pydantic import Field, model_validator

from dynapipe_hpc.architecture.lora import Lora
from dynapipe_hpc.architecture.part import NOTHING, Boundary, Part, Weights
from dynapipe_hpc.data.config_table import ConfigTable
from dynapipe_hpc.data.microbatch import Recompute


class ModelShape(ConfigTable, ABC):
    """A model before it is cut: the keys that all families have, and facts that need no torch.

    Contract: the numbers of weights and, where the family has closed forms, of operations and kept
    bytes are equal to those of the family's torch modules in `models`.

    Attributes:
        family: Kind of model.
        n_layers: Number of transformer layers; in an encoder-decoder, of encoder layers only.
        hidden_size: Width of the residual stream.
        n_heads: Number of attention heads.
        head_size: Width of one head; None means hidden_size / n_heads.
        ffn_size: Inner width of the feed-forward block.
        vocab_size: Number of token ids.
        max_tokens: Maximum length of a row in tokens.
        norm_epsilon: Number that norms add to a variance or mean square.
        tied_head: Whether the output head shares the embedding's weights, as in GPT-2 and T5 1.0.
        lora: Adapters that are trained in place of the weights; None to train the weights.
        layers_per_stage: Number of layers on every pipeline stage, encoder layers first; None to
            choose them by cost before planning starts.
        init_from: Folder whose weights a new run begins with: a Hugging Face model, a checkpoint,
            or a run (its newest checkpoint). Sizes that the table leaves out are taken from that
            model; sizes that it gives must be the same. None to draw weights at random.
    """

    has_target_rows: ClassVar[bool] = False
    """Whether targets have rows of their own, separate from those of inputs."""
    divisible_by_shards: ClassVar[tuple[str, ...]] = ("n_heads", "ffn_size")
    """Names of the sizes that tensor-parallel shards divide equally."""
    has_own_layers: ClassVar[bool] = True
    """Whether layers are modules of this package; layers of a library run uncut, on one shard."""

    family: str
    n_layers: int = Field(ge=1, le=10_000)
    hidden_size: int = Field(ge=1, le=2**20)
    n_heads: int = Field(ge=1, le=2**16)
    head_size: int | None = Field(default=None, ge=1, le=2**16)
    ffn_size: int = Field(ge=1, le=2**24)
    vocab_size: int = Field(ge=2, le=2**31)
    max_tokens: int = Field(ge=1, le=2**24)
    norm_epsilon: float = Field(default=1e-5, gt=0, le=1)
    tied_head: bool = False
    lora: Lora | None = None
    layers_per_stage: tuple[Annotated[int, Field(ge=1)], ...] | None = None
    init_from: Annotated[str, Field(min_length=1)] | None = None

    @model_validator(mode="after")
    def _check_sizes(self) -> Self:
        self.check()
        if self.lora:
            self.lora.check(chain(*self.linear_layers.values()))
        n_placed = sum(self.layers_per_stage or ())
        if self.layers_per_stage and n_placed != self.n_all_layers:
            raise ValueError(
                f"layers_per_stage {list(self.layers_per_stage)} adds up to {n_placed}, but "
                f"n_layers is {self.layers_text}, in total {self.n_all_layers}; change either, or "
                "leave layers_per_stage out"
            )
        return self

    def check(self) -> None:
        """Raises `ValueError`, with names and values, if sizes contradict each other."""

    @property
    @abstractmethod
    def layer_counts(self) -> Mapping[str, int]:
        """Number of layers of each kind, in the order in which rows pass the kinds."""

    @property
    @abstractmethod
    def tied(self) -> Mapping[str, tuple[str, ...]]:
        """Kinds of parts that use each tied weight, by its name; several stages may hold a copy.

        The weight itself is the first block of the first of these kinds.
        """

    @property
    def fingerprint(self) -> Mapping[str, int]:
        """Sizes on which costs of a part depend; the number of layers is not among them."""
        names = ("hidden_size", "n_heads", "ffn_size", "vocab_size")
        return {name: getattr(self, name) for name in names}

    @property
    @abstractmethod
    def linear_layers(self) -> Mapping[str, tuple[str, ...]]:
        """Names of the output blocks of linear layers that may have adapters, by layer-name suffix.

        A layer computes equal blocks of outputs, one per name: each may have an adapter of its own,
        as in other implementations of the family.
        """

    def parts(
        self,
        n_shards: int = 1,  # noqa: ARG002 - for families with closed forms
        n_stream_shards: int = 1,  # noqa: ARG002 - likewise
    ) -> Mapping[str, Part]:
        """Closed forms of the parts of the model by kind, as one tensor-parallel shard holds them.

        A family may have none: then its costs are measured, or estimated from parts found in
        another way, and it implements `weights` and `deferring_kinds` itself. The residual stream
        is spread over `n_stream_shards`, which is `n_shards` or 1.
        """
        return {}

    def deferring_kinds(self, recompute: Recompute) -> frozenset[str]:
        """Kinds of parts whose weight gradients a split backward pass leaves to W."""
        parts = self.parts().items()
        return frozenset(kind for kind, part in parts if part.deferred_work(recompute) != NOTHING)

    def weights(self, n_shards: int = 1) -> Mapping[str, Weights]:
        """Weights of the parts of the model by kind, as one tensor-parallel shard holds them."""
        return {kind: part.weights for kind, part in self.parts(n_shards).items()}

    @abstractmethod
    def held(self, layers: range, *, first: bool, last: bool) -> Mapping[str, int]:
        """Number of parts of each kind on a pipeline stage.

        `layers`: Indices of the layers on the stage, counted over layers of all kinds.
        """

    @abstractmethod
    def boundary(self, layers: range) -> Boundary:
        """Boundary between a stage that holds these layers and the next one."""

    @property
    def dropout_rate(self) -> float:
        """Share of the numbers that training sets to zero; 0 in a family that drops none."""
        return 0.0

    @property
    def sizes(self) -> dict[str, Any]:
        """Keys and values that say what is computed, not where, nor from which weights."""
        return self.model_dump(mode="json", exclude={"layers_per_stage", "init_from"})

    @property
    def head_width(self) -> int:
        """Width of one head, even if the table leaves it out."""
        return self.head_size or self.hidden_size // self.n_heads

    @property
    def attention_size(self) -> int:
        return self.n_heads * self.head_width

    @property
    def cache_width(self) -> int:
        """Values per token and layer in the key-value cache; 0 if samples have no slices."""
        return 0

    @property
    def spared_width(self) -> int:
        """Part of `cache_width` that a layer keeps for a row, but that a slice has in the cache."""
        return 0

    @property
    def slices_obstacle(self) -> str:
        """Reason why samples cannot be cut into slices; empty if they can."""
        return "" if self.cache_width else "their inputs attend to all tokens"

    @property
    def pairs_obstacle(self) -> str:
        """Reason why the answers of a preference pair cannot share their prompt; empty if they can.

        Rejected answers attend to the keys of the prompt, which lies in a row once.
        """
        return "inputs and targets have rows of their own" if self.has_target_rows else ""

    @property
    def window(self) -> float:
        """Tokens that a token sees in layers with a window; infinite if no row is longer."""
        return math.inf

    @property
    def n_all_layers(self) -> int:
        return sum(self.layer_counts.values())

    @property
    def layers_text(self) -> str:
        """Human-readable number of layers; by kind if there are several kinds."""
        by_kind = " + ".join(f"{n} {kind}" for kind, n in self.layer_counts.items())
        return f"{by_kind} layers" if len(self.layer_counts) > 1 else str(self.n_layers)

    def with_layers(self, n: int) -> Self:
        return self.model_copy(update={"n_layers": n})

    def ids_per_shard(self, n_shards: int) -> int:
        """Rows of the vocabulary per shard; the last shard is padded, as in Megatron-LM."""
        return -(-self.vocab_size // n_shards)
