"""The sizes of a model that planner and executor need."""

from itertools import chain
from typing import Self

from pydantic import Field, model_validator

from dynapipe_hpc.architecture.architecture import Architecture
from dynapipe_hpc.architecture.families import FAMILIES, FamilyName
from dynapipe_hpc.architecture.lora import Lora
from dynapipe_hpc.architecture.rope_scaling import AnyRopeScaling
from dynapipe_hpc.data.config_table import ConfigTable


class ModelShape(ConfigTable):
    """A transformer, decoder-only (gpt, llama) or encoder-decoder (t5), before it is cut.

    Attributes:
        family: Kind of model.
        n_layers: Number of transformer layers; in a t5, of the encoder.
        n_decoder_layers: Number of layers of a t5's decoder; None for as many as in the encoder.
        hidden_size: Width of the residual stream.
        n_heads: Number of attention heads.
        head_size: Width of one head; None for hidden_size / n_heads, which is that of a gpt.
        ffn_size: Inner width of the feed-forward block.
        gated: Whether the feed-forward block of a t5 has a gated GELU (T5 1.1) instead of a ReLU.
        vocab_size: Number of token ids.
        max_tokens: Longest row in tokens: size of the position table in a gpt, a limit in a t5.
        norm_epsilon: Number that norms add to a variance or mean square; None for the family's
            own: 1e-5 in a gpt and a llama, 1e-6 in a t5.
        tied_head: Whether logits have the embedding's weights, as in GPT-2; None for the family's
            default: not in a gpt or a llama, but in a t5.
        scale_decoder_outputs: Whether a t5 with a tied head divides what its logits are computed
            from by the root of the width, as T5 1.0 does; None for yes. No head of its own is
            divided.
        n_buckets: Number of ranges of distances for which a t5 has a bias; None for 32.
        max_distance: Distance from which on all share a bias; None for 128.
        dropout: Share of the numbers that training sets to zero after embeddings and maps back to
            the residual stream (and in a t5 after the function of the feed-forward block and after
            final norms); None for 0. Attention drops nothing.
        lora: Adapters that are trained in place of the weights; None to train the weights.
        n_kv_heads: Number of heads of keys and values in a llama, each shared by equally many heads
            of queries (grouped queries); None for as many as heads of queries.
        rope_theta: Base of the angles of a llama's rotary positions; None for 10,000.
        rope_scaling: Scaling of rotary positions; None without.
        qkv_bias: Whether a llama's maps of queries, keys and values have biases, as in Qwen2; None
            for no.
        qk_norm: Whether a llama normalises queries and keys head by head, as Qwen3 does; None for
            no.
    """

    family: FamilyName = "gpt"
    n_layers: int = Field(ge=1, le=10_000)
    n_decoder_layers: int | None = Field(default=None, ge=1, le=10_000)
    hidden_size: int = Field(ge=1, le=2**20)
    n_heads: int = Field(ge=1, le=2**16)
    head_size: int | None = Field(default=None, ge=1, le=2**16)
    ffn_size: int = Field(ge=1, le=2**24)
    gated: bool | None = None
    vocab_size: int = Field(ge=2, le=2**31)
    max_tokens: int = Field(ge=1, le=2**24)
    norm_epsilon: float | None = Field(default=None, gt=0, le=1)
    tied_head: bool | None = None
    scale_decoder_outputs: bool | None = None
    n_buckets: int | None = Field(default=None, ge=4, le=2**16)
    max_distance: int | None = Field(default=None, ge=1, le=2**24)
    dropout: float | None = Field(default=None, ge=0, le=0.9)
    lora: Lora | None = None
    n_kv_heads: int | None = Field(default=None, ge=1, le=2**16)
    rope_theta: float | None = Field(default=None, gt=1, le=1e12)
    rope_scaling: AnyRopeScaling | None = None
    qkv_bias: bool | None = None
    qk_norm: bool | None = None

    @model_validator(mode="after")
    def _the_family_takes_every_option(self) -> Self:
        for name in OPTIONS:
            value = getattr(self, name)
            if value is not None and name not in self.architecture.options:
                takers = [f"'{each}'" for each, page in FAMILIES.items() if name in page.options]
                raise ValueError(
                    f"family '{self.family}' takes no {name} ({value}), only "
                    f"{' and '.join(takers)} {'do' if len(takers) > 1 else 'does'}; leave it out, "
                    "or change family"
                )
        return self

    @model_validator(mode="after")
    def _sizes_go_together(self) -> Self:
        self.architecture.check()
        if self.lora:
            self.lora.check(chain(*self.architecture.linear_layers.values()))
        return self

    @property
    def architecture(self) -> Architecture:
        """Architecture of a model of these sizes."""
        return FAMILIES[self.family](self)

    @property
    def attention_size(self) -> int:
        """Total width of all heads."""
        return self.n_heads * (self.head_size or self.hidden_size // self.n_heads)

    @property
    def n_all_layers(self) -> int:
        """Number of layers, those of encoder and decoder together."""
        return sum(self.architecture.layer_counts.values())

    @property
    def layers_text(self) -> str:
        """Number of layers for people; by kind if there are several."""
        counts = self.architecture.layer_counts
        if len(counts) == 1:
            return str(self.n_layers)
        return " + ".join(f"{n} {kind}" for kind, n in counts.items()) + " layers"

    def with_layers(self, n: int) -> Self:
        """The same model with `n` layers of each kind."""
        return self.model_copy(update={"n_layers": n, "n_decoder_layers": None})

    def ids_per_shard(self, n_shards: int) -> int:
        """Number of rows of the vocabulary per tensor-parallel shard; the last shard is padded.

        Source:
            Shoeybi et al., "Megatron-LM", arXiv:1909.08053, section 3, on padded vocabularies.
        """
        return -(-self.vocab_size // n_shards)


OPTIONS = tuple(
    name
    for name, field in ModelShape.model_fields.items()
    if field.default is None and name != "lora"  # which all families take
)
"""Optional keys of the [model] table, which some families take."""
