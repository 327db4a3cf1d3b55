"""Rotary positions and windows of attention in `config.json`, as old and new files have them."""

from typing import Any

from dynapipe_hpc.architecture.llama import LlamaShape
from dynapipe_hpc.architecture.rope_scaling import LinearScaling, mean_scale
from dynapipe_hpc.architecture.transformers import sliding_layers
from dynapipe_hpc.data.errors import InputError, quoted
from dynapipe_hpc.training.huggingface.model_type_mapping import LONGEST, Values
from dynapipe_hpc.training.huggingface.settings import Settings

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
