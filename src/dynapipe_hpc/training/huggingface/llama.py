"""Llama of Hugging Face with its rotary positions; Mistral and Qwen are settings of it."""

import re
from collections.abc import Iterator, Mapping
from typing import Any

from dynapipe_hpc.architecture.decoder import LlamaShape
from dynapipe_hpc.architecture.rope_scaling import LinearScaling, mean_scale
from dynapipe_hpc.architecture.transformers import sliding_layers
from dynapipe_hpc.data.errors import InputError, quoted
from dynapipe_hpc.training.huggingface.model_type_mapping import LONGEST, ModelTypeMapping, Values
from dynapipe_hpc.training.huggingface.settings import Settings
from dynapipe_hpc.training.huggingface.tensor_map import TensorMap, same

_PLAIN, _LINEAR, _LLAMA3, _YARN = "default", "linear", "llama3", "yarn"


def rope_values(settings: Settings) -> Values:
    """Values of the [model] table: base and scaling of rotary positions."""
    given: dict[str, Any] = {"rope_theta": settings.get("rope_theta")}
    for name in ("rope_scaling", "rope_parameters"):  # in files of version 4, and 5
        scaling = settings.get(name, {})
        if not isinstance(scaling, dict):
            raise InputError(f"{settings.path}: '{name}' is {quoted(scaling)}, not a JSON object")
        given |= scaling
    complete = Settings(settings.path, {"rope_type": given.get("type"), **given})
    complete.require("rope_type", _PLAIN, _LINEAR, _LLAMA3, _YARN)
    complete.require("partial_rotary_factor", 1.0)
    settings.require("partial_rotary_factor", 1.0)
    theta = {"rope_theta": complete.number("rope_theta", 10_000.0)}
    match complete.get("rope_type", _PLAIN):
        case "linear":
            return {
                **theta,
                "rope_scaling": {"kind": _LINEAR, "factor": _number(complete, "factor")},
            }
        case "llama3":
            factors = {
                name: _number(complete, name)
                for name in ("factor", "low_freq_factor", "high_freq_factor")
            }
            scaling = {
                "kind": _LLAMA3,
                **factors,
                "original_max_tokens": _original_max_tokens(settings, complete),
            }
            return {**theta, "rope_scaling": scaling}
        case "yarn":
            scaling = {
                "kind": _YARN,
                "factor": _number(complete, "factor"),
                "beta_fast": complete.number("beta_fast", 32.0),
                "beta_slow": complete.number("beta_slow", 1.0),
                "original_max_tokens": _original_max_tokens(settings, complete),
                "attention_factor": _attention_factor(complete),
                "truncate": complete.flag("truncate", default=True),
            }
            return {**theta, "rope_scaling": scaling}
    return theta


def _attention_factor(complete: Settings) -> float | None:
    """Factor of turned queries and keys; None if that of YaRN follows from the divisor alone."""
    if complete.get("attention_factor") is not None:
        return _number(complete, "attention_factor")
    names = ("mscale", "mscale_all_dim")
    if any(complete.get(name) is None for name in names):
        return None
    factor = _number(complete, "factor")
    scale, common = (mean_scale(factor, _number(complete, name)) for name in names)
    return scale / common


def rope_config(shape: LlamaShape) -> Values:
    """Values of `config.json`: base and scaling of rotary positions."""
    values: Values = {"rope_theta": shape.rope_theta}
    if shape.rope_scaling is not None:
        renamed = {"kind", "original_max_tokens"}
        scaling = shape.rope_scaling.model_dump(exclude=renamed, exclude_none=True)
        if not isinstance(shape.rope_scaling, LinearScaling):
            longest = shape.rope_scaling.original_max_tokens
            scaling["original_max_position_embeddings"] = longest
        values["rope_scaling"] = {"rope_type": shape.rope_scaling.kind, **scaling}
    return values


def _original_max_tokens(settings: Settings, complete: Settings) -> int:
    """Rows of the pretraining, where `transformers` looks for them, one place after the other."""
    name = "original_max_position_embeddings"
    if settings.get(name) is not None:
        return settings.integer(name)
    return complete.integer(name, settings.integer("max_position_embeddings"))


def longest_seen(settings: Settings) -> int:
    """Most tokens of a row in which every position sees all before it: the window, if it slides."""
    is_mistral = settings.get("model_type") == "mistral"
    if settings.get("sliding_window") is None or not (
        is_mistral
        or (
            settings.get("use_sliding_window")
            and sliding_layers(settings.values, settings.integer("num_hidden_layers"))
        )
    ):
        return LONGEST
    return settings.integer("sliding_window")


def _number(settings: Settings, name: str) -> float:
    return settings.number(name, 0.0)


_LLAMA_DEFAULTS: Values = {
    "vocab_size": 32000,
    "hidden_size": 4096,
    "intermediate_size": 11008,
    "num_hidden_layers": 32,
    "num_attention_heads": 32,
    "max_position_embeddings": 2048,
}
_QWEN_DEFAULTS: Values = {
    "vocab_size": 151936,
    "intermediate_size": 22016,
    "num_key_value_heads": 32,
    "max_position_embeddings": 32768,
    "sliding_window": 4096,
}


def _model(settings: Settings, *, qkv_bias: bool, may_have_biases: bool, qk_norm: bool) -> Values:
    settings.require("hidden_act", "silu", "swish")
    if not may_have_biases:
        settings.require("attention_bias", False)
    settings.require("mlp_bias", False)
    has_biases = settings.flag("attention_bias", default=False)
    width, n_heads = settings.integer("hidden_size"), settings.integer("num_attention_heads")
    max_tokens = settings.integer("max_position_embeddings")
    return {
        "family": "llama",
        "n_layers": settings.integer("num_hidden_layers"),
        "hidden_size": width,
        "n_heads": n_heads,
        "n_kv_heads": settings.integer("num_key_value_heads", n_heads),
        "head_size": settings.integer("head_dim", max(1, width // n_heads)),
        "ffn_size": settings.integer("intermediate_size"),
        "vocab_size": settings.integer("vocab_size"),
        "max_tokens": min(max_tokens, longest_seen(settings)),
        "norm_epsilon": settings.number("rms_norm_eps", 1e-6),
        "tied_head": settings.flag("tie_word_embeddings", default=False),
        "qkv_bias": qkv_bias or has_biases,
        "output_bias": has_biases,
        "qk_norm": qk_norm,
        **rope_values(settings),
    }


def _config(shape: LlamaShape) -> Values:
    return {
        "num_hidden_layers": shape.n_layers,
        "hidden_size": shape.hidden_size,
        "num_attention_heads": shape.n_heads,
        "num_key_value_heads": shape.layer_settings.n_kv_heads,
        "head_dim": shape.head_width,
        "intermediate_size": shape.ffn_size,
        "vocab_size": shape.vocab_size,
        "max_position_embeddings": shape.max_tokens,
        "rms_norm_eps": shape.norm_epsilon,
        "tie_word_embeddings": shape.tied_head,
        "hidden_act": "silu",
        "sliding_window": None,  # not that of a class that has one by default
        **({"attention_bias": True} if shape.output_bias else {}),
        **rope_config(shape),
    }


def _tensors(shape: LlamaShape) -> Iterator[TensorMap]:
    width, inner, vocabulary = shape.hidden_size, shape.ffn_size, shape.vocab_size
    yield same("embedding.tokens.weight", (vocabulary, width), "model.embed_tokens.weight")
    for i in range(shape.n_layers):
        ours, theirs = f"layers.{i}", f"model.layers.{i}"
        norm = f"{theirs}.input_layernorm.weight"
        yield same(f"{ours}.attention_norm.weight", (width,), norm)
        yield from _attention(shape, f"{ours}.attention", f"{theirs}.self_attn")
        norm = f"{theirs}.post_attention_layernorm.weight"
        yield same(f"{ours}.feed_forward_norm.weight", (width,), norm)
        sources = {f"{theirs}.mlp.{name}_proj.weight": inner for name in ("gate", "up")}
        yield TensorMap(f"{ours}.feed_forward.inner.weight", (2 * inner, width), sources)
        down = f"{theirs}.mlp.down_proj.weight"
        yield same(f"{ours}.feed_forward.output.weight", (width, inner), down)
    yield same("head.norm.weight", (width,), "model.norm.weight")
    if not shape.tied_head:
        yield same("head.logits.weight", (vocabulary, width), "lm_head.weight")


def _attention(shape: LlamaShape, ours: str, theirs: str) -> Iterator[TensorMap]:
    width, heads = shape.hidden_size, shape.attention_size
    shared = shape.layer_settings.n_kv_heads * shape.head_width
    for name, n_outputs in (("query", heads), ("key", shared), ("value", shared)):
        source = f"{theirs}.{name[0]}_proj"
        yield same(f"{ours}.{name}.weight", (n_outputs, width), f"{source}.weight")
        if shape.qkv_bias:
            yield same(f"{ours}.{name}.bias", (n_outputs,), f"{source}.bias")
    for name in ("query", "key") if shape.qk_norm else ():
        norm = f"{theirs}.{name[0]}_norm.weight"
        yield same(f"{ours}.{name}_norm.weight", (shape.head_width,), norm)
    yield same(f"{ours}.output.weight", (width, heads), f"{theirs}.o_proj.weight")
    if shape.output_bias:
        yield same(f"{ours}.output.bias", (width,), f"{theirs}.o_proj.bias")


def _copies(shape: LlamaShape) -> Mapping[str, str]:
    return {"lm_head.weight": "model.embed_tokens.weight"} if shape.tied_head else {}


def _page(
    name: str,
    defaults: Values,
    *,
    qkv_bias: bool = False,
    may_have_biases: bool = False,
    qk_norm: bool = False,
    takes_any_width: bool = True,
) -> ModelTypeMapping:
    """Mapping of a class of `transformers`."""
    all_defaults = {**_LLAMA_DEFAULTS, **defaults}

    def model(settings: Settings) -> Values:
        return _model(
            settings.with_defaults(all_defaults),
            qkv_bias=qkv_bias,
            may_have_biases=may_have_biases,
            qk_norm=qk_norm,
        )

    def longest(settings: Settings) -> int:
        return longest_seen(settings.with_defaults(all_defaults))

    def fits(shape: LlamaShape) -> bool:
        if shape.output_bias and not may_have_biases:
            return False
        if (shape.qkv_bias, shape.qk_norm) != (qkv_bias or shape.output_bias, qk_norm):
            return False
        return takes_any_width or shape.hidden_size % shape.n_heads == 0

    return ModelTypeMapping(
        model_type=name.lower(),
        architecture=f"{name}ForCausalLM",
        family="llama",
        prefix="model.",
        model=model,
        config=_config,
        dropout=lambda _: {},
        fits=fits,
        tensors=_tensors,
        copies=_copies,
        ignored=re.compile(r"model\.(layers\.\d+\.self_attn\.)?rotary_emb\.inv_freq"),
        longest=longest,
    )


LLAMA = _page("Llama", {}, may_have_biases=True, takes_any_width=False)
MISTRAL = _page(
    "Mistral",
    {
        "intermediate_size": 14336,
        "num_key_value_heads": 8,
        "max_position_embeddings": 131072,
        "sliding_window": 4096,
    },
)
QWEN2 = _page("Qwen2", _QWEN_DEFAULTS, qkv_bias=True)
QWEN3 = _page("Qwen3", {**_QWEN_DEFAULTS, "head_dim": 128}, may_have_biases=True, qk_norm=True)
