"""GPT-2 and Llama models of Hugging Face; Mistral and Qwen are Llamas with other settings."""

import re
from collections.abc import Iterator, Mapping
from functools import partial
from typing import Any, NamedTuple

from dynapipe_hpc.architecture.decoder import DecoderShape, GptShape, LlamaShape
from dynapipe_hpc.architecture.rope_scaling import LinearScaling, mean_scale
from dynapipe_hpc.architecture.transformers import config_of, windows_of_layers
from dynapipe_hpc.data.errors import InputError, quoted
from dynapipe_hpc.training.huggingface.mapping import (
    LONGEST,
    ModelTypeMapping,
    Settings,
    TensorMap,
    Values,
    same,
    sizes_of,
)


class _Names(NamedTuple):
    """Names of Hugging Face tensors; names within a layer come behind the layer's number."""

    ends: tuple[str, str, str, str]
    of_layer: Mapping[str, tuple[str, ...]]
    has_columns: bool = False


_GPT2_NAMES = _Names(
    ("transformer.wte", "transformer.wpe", "transformer.h", "transformer.ln_f"),
    {
        "attention_norm": ("ln_1",),
        "attention.query_key_value": ("attn.c_attn",),
        "attention.output": ("attn.c_proj",),
        "feed_forward_norm": ("ln_2",),
        "feed_forward.inner": ("mlp.c_fc",),
        "feed_forward.output": ("mlp.c_proj",),
    },
    has_columns=True,
)
_LLAMA_NAMES = _Names(
    ("model.embed_tokens", "", "model.layers", "model.norm"),
    {
        "attention_norm": ("input_layernorm",),
        "attention.query": ("self_attn.q_proj",),
        "attention.key": ("self_attn.k_proj",),
        "attention.value": ("self_attn.v_proj",),
        "attention.query_norm": ("self_attn.q_norm",),
        "attention.key_norm": ("self_attn.k_norm",),
        "attention.output": ("self_attn.o_proj",),
        "feed_forward_norm": ("post_attention_layernorm",),
        "feed_forward.inner": ("mlp.gate_proj", "mlp.up_proj"),
        "feed_forward.output": ("mlp.down_proj",),
    },
)
_HEAD = "lm_head.weight"


def _tensors(shape: DecoderShape, names: _Names) -> Iterator[TensorMap]:
    tokens, positions, layers, norm = names.ends
    vocabulary, width = (shape.vocab_size, shape.hidden_size), shape.hidden_size
    kinds = ("weight", "bias") if shape.layer_settings.has_layer_norms else ("weight",)
    yield same("embedding.tokens.weight", vocabulary, f"{tokens}.weight")
    if n_positions := shape.layer_settings.n_positions:
        yield same("embedding.positions.weight", (n_positions, width), f"{positions}.weight")
    for i in range(shape.n_layers):
        for name, size, has_bias in _weights_of_layer(shape):
            for kind in ("weight", "bias") if has_bias else ("weight",):
                sizes = size if kind == "weight" else size[:1]
                sources = names.of_layer[name]
                rows = {f"{layers}.{i}.{each}.{kind}": size[0] // len(sources) for each in sources}
                is_turned = names.has_columns and len(sizes) == 2
                yield TensorMap(f"layers.{i}.{name}.{kind}", sizes, rows, transposed=is_turned)
    for kind in kinds:
        yield same(f"head.norm.{kind}", (width,), f"{norm}.{kind}")
    if not shape.tied_head:
        yield same("head.logits.weight", vocabulary, _HEAD)


def _weights_of_layer(shape: DecoderShape) -> Iterator[tuple[str, tuple[int, ...], bool]]:
    settings, width, inner = shape.layer_settings, shape.hidden_size, shape.ffn_size
    heads, sources = shape.attention_size, settings.n_kv_heads * shape.head_width
    yield "attention_norm", (width,), settings.has_layer_norms
    projections = {"query": heads, "key": sources, "value": sources}
    if settings.is_joined:
        projections = {"query_key_value": heads + 2 * sources}
    for name, n_outputs in projections.items():
        yield f"attention.{name}", (n_outputs, width), settings.qkv_bias
    for name in ("query_norm", "key_norm") if settings.qk_norm else ():
        yield f"attention.{name}", (shape.head_width,), False
    yield "attention.output", (width, heads), settings.output_bias
    yield "feed_forward_norm", (width,), settings.has_layer_norms
    n_inner = 2 * inner if settings.is_gated else inner
    yield "feed_forward.inner", (n_inner, width), settings.ffn_bias
    yield "feed_forward.output", (width, inner), settings.ffn_bias


_GPT2_SIZES = {
    "n_layers": "n_layer",
    "hidden_size": "n_embd",
    "n_heads": "n_head",
    "vocab_size": "vocab_size",
    "max_tokens": "n_positions",
}


def _gpt2_model(settings: Settings) -> Values:
    settings.require("activation_function", "gelu_new", "gelu_pytorch_tanh")
    settings.require("scale_attn_weights", True)
    settings.require("scale_attn_by_inverse_layer_idx", False)
    settings.require("add_cross_attention", False)
    sizes = sizes_of(settings, _GPT2_SIZES)
    return {
        "family": "gpt",
        **sizes,
        "ffn_size": settings.integer("n_inner", 4 * sizes["hidden_size"]),
        "norm_epsilon": settings.number("layer_norm_epsilon", 1e-5),
        "tied_head": settings.flag("tie_word_embeddings", default=True),
        "dropout": settings.share("resid_pdrop", 0.1),
    }


def _gpt2_config(shape: GptShape) -> Values:
    return {
        **{theirs: getattr(shape, ours) for ours, theirs in _GPT2_SIZES.items()},
        "n_inner": shape.ffn_size,
        "layer_norm_epsilon": shape.norm_epsilon,
        "tie_word_embeddings": shape.tied_head,
        "activation_function": "gelu_new",
        **_gpt2_dropout(shape),
    }


def _gpt2_dropout(shape: GptShape) -> Values:
    rate = shape.dropout_rate
    return {"attn_pdrop": 0.0, "embd_pdrop": rate, "resid_pdrop": rate}


GPT2 = ModelTypeMapping(
    model_type="gpt2",
    architecture="GPT2LMHeadModel",
    family="gpt",
    prefix="transformer.",
    model=_gpt2_model,
    config=_gpt2_config,
    dropout=_gpt2_dropout,
    tensors=lambda shape: _tensors(shape, _GPT2_NAMES),
    copies=lambda shape: {_HEAD: "transformer.wte.weight"} if shape.tied_head else {},
    ignored=re.compile(r"transformer\.h\.\d+\.attn\.(masked_)?bias"),
    longest=lambda _: None,
)


def rope_values(settings: Settings) -> Values:
    """Values of the [model] table: base and scaling of rotary positions."""
    given: dict[str, Any] = {"rope_theta": settings.get("rope_theta")}
    for name in ("rope_scaling", "rope_parameters"):  # in files of version 4, and 5
        scaling = settings.get(name, {})
        if not isinstance(scaling, dict):
            raise InputError(f"{settings.path}: '{name}' is {quoted(scaling)}, not a JSON object")
        given |= scaling
    complete = Settings(settings.path, {"rope_type": given.get("type"), **given})
    complete.require("rope_type", "default", "linear", "llama3", "yarn")
    complete.require("partial_rotary_factor", 1.0)
    settings.require("partial_rotary_factor", 1.0)
    theta = {"rope_theta": complete.number("rope_theta", 10_000.0)}
    match complete.get("rope_type", "default"):
        case "linear":
            more: Values = {}
        case "llama3":
            more = {
                "low_freq_factor": complete.number("low_freq_factor"),
                "high_freq_factor": complete.number("high_freq_factor"),
                "original_max_tokens": _original_max_tokens(settings, complete),
            }
        case "yarn":
            more = {
                "beta_fast": complete.number("beta_fast", 32.0),
                "beta_slow": complete.number("beta_slow", 1.0),
                "original_max_tokens": _original_max_tokens(settings, complete),
                "attention_factor": _attention_factor(complete),
                "truncate": complete.flag("truncate", default=True),
            }
        case _:
            return theta
    known = {"kind": complete.get("rope_type"), "factor": complete.number("factor")}
    return {**theta, "rope_scaling": {**known, **more}}


def _attention_factor(complete: Settings) -> float | None:
    """Factor of rotated queries and keys; None if it follows from YaRN's divisor alone."""
    if complete.get("attention_factor") is not None:
        return complete.number("attention_factor")
    names = ("mscale", "mscale_all_dim")
    if any(complete.get(name) is None for name in names):
        return None
    factor = complete.number("factor")
    scale, common = (mean_scale(factor, complete.number(name)) for name in names)
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
    name = "original_max_position_embeddings"
    if settings.get(name) is not None:
        return settings.integer(name)
    return complete.integer(name, settings.integer("max_position_embeddings"))


def longest_seen(settings: Settings) -> int:
    """Length of the longest row whose positions see all earlier ones: the window, if any."""
    if settings.get("model_type") == "mistral":  # it reads no other keys of windows
        return settings.completed("sliding_window").integer("sliding_window", LONGEST)
    has_windows = settings.get("use_sliding_window")
    windows = windows_of_layers(config_of(settings.values)) if has_windows else []
    return min((n for n in windows if n), default=LONGEST)


_LLAMA_SIZES = {
    "n_layers": "num_hidden_layers",
    "hidden_size": "hidden_size",
    "n_heads": "num_attention_heads",
    "ffn_size": "intermediate_size",
    "vocab_size": "vocab_size",
    "max_tokens": "max_position_embeddings",
}


def _llama_model(
    settings: Settings, *, qkv_bias: bool, may_have_biases: bool, qk_norm: bool
) -> Values:
    sizes = sizes_of(settings, _LLAMA_SIZES)
    settings = settings.completed("num_key_value_heads", *(("head_dim",) if qk_norm else ()))
    settings.require("hidden_act", "silu", "swish")
    if not may_have_biases:
        settings.require("attention_bias", False)
    settings.require("mlp_bias", False)
    has_biases = settings.flag("attention_bias", default=False)
    n_heads = sizes["n_heads"]
    return {
        "family": "llama",
        **sizes,
        "n_kv_heads": settings.integer("num_key_value_heads", n_heads),
        "head_size": settings.integer("head_dim", max(1, sizes["hidden_size"] // n_heads)),
        "max_tokens": min(sizes["max_tokens"], longest_seen(settings)),
        "norm_epsilon": settings.number("rms_norm_eps", 1e-6),
        "tied_head": settings.flag("tie_word_embeddings", default=False),
        "qkv_bias": qkv_bias or has_biases,
        "output_bias": has_biases,
        "qk_norm": qk_norm,
        **rope_values(settings),
    }


def _llama_config(shape: LlamaShape) -> Values:
    return {
        **{theirs: getattr(shape, ours) for ours, theirs in _LLAMA_SIZES.items()},
        "num_key_value_heads": shape.layer_settings.n_kv_heads,
        "head_dim": shape.head_width,
        "rms_norm_eps": shape.norm_epsilon,
        "tie_word_embeddings": shape.tied_head,
        "hidden_act": "silu",
        "sliding_window": None,  # not the default that some classes have
        **({"attention_bias": True} if shape.output_bias else {}),
        **rope_config(shape),
    }


def _llama(
    name: str,
    *,
    qkv_bias: bool = False,
    may_have_biases: bool = False,
    qk_norm: bool = False,
    takes_any_width: bool = True,
) -> ModelTypeMapping:
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
        model=partial(
            _llama_model, qkv_bias=qkv_bias, may_have_biases=may_have_biases, qk_norm=qk_norm
        ),
        config=_llama_config,
        fits=fits,
        tensors=lambda shape: _tensors(shape, _LLAMA_NAMES),
        copies=lambda shape: {_HEAD: "model.embed_tokens.weight"} if shape.tied_head else {},
        ignored=re.compile(r"model\.(layers\.\d+\.self_attn\.)?rotary_emb\.inv_freq"),
        longest=longest_seen,
    )


LLAMA = _llama("Llama", may_have_biases=True, takes_any_width=False)
MISTRAL = _llama("Mistral")
QWEN2 = _llama("Qwen2", qkv_bias=True)
QWEN3 = _llama("Qwen3", may_have_biases=True, qk_norm=True)
