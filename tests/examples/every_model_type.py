"""Small random models of every type that `transformers` has as a causal language model."""

import re
from collections.abc import Mapping
from typing import Any

import torch
from tests.examples.foreign_models import N_IDS, transformers
from tests.oracles.in_float64 import in_float64
from torch import nn

N_LAYERS = 4
_SIZES: Mapping[str, int] = {
    r"(?!.*(decoder_layers|per_layer)).*(hidden_layers|n_layers?|num_layers|num_blocks)": N_LAYERS,
    r"(encoder_|decoder_|num_encoder_|num_decoder_)layers": N_LAYERS,
    r".*vocab.*": N_IDS,
    r"pad_token_id": 0,
    r"bos_token_id": 1,
    r"eos_token_id": 2,
    r".*_token_(id|index)": 3,
    r"(max_position_embeddings|n_positions|n_ctx|max_seq_len|context_length|.*max_length)": 64,
    r"(max_target_positions|max_source_positions)": 64,
    r"original_max_position_embeddings": 64,
    r"(sliding_window|attention_window_size|window_size|sliding_window_size)": 6,
    r"(hidden_size|n_embd|d_model|emb_dim|embedding_dim|embedding_size|word_embed_proj_dim)": 32,
    r".*num_key_value_heads|num_kv_heads|.*kv_n_heads": 2,
    r".*(attention_heads|n_heads?|num_heads)": 4,
    r"qk_head_dim": 12,
    r"qk_rope_head_dim": 4,
    r".*head_dim|attention_head_size|kv_channels|d_head|dim_head|query_pre_attn_scalar": 8,
    r"(?!num_).*(intermediate_size|ffn_dim|ffn_hidden_size|dim_ff|dff|n_inner|ff_dim).*": 24,
    r"(num_experts|num_local_experts|n_routed_experts|moe_num_experts)": 4,
    r"(num_experts_per_tok|top_k|moe_topk|moe_k|moe_top_k)": 2,
    r".*_lora_rank": 8,
    r"rotary_dim": 4,
}
"""Sizes by patterns of the names of settings."""
_WITHOUT_DEFAULT = ("token_id", "head_dim", "key_value_heads")
_ALL_HEADS = {"num_key_value_heads": 4}
_CONVOLUTIONS = {"layer_types": ["conv", "full_attention"] * 2}
_OWN: Mapping[str, Mapping[str, Any]] = {
    **dict.fromkeys(("axk1", "axk2", "deepseek_v2", "deepseek_v3", "deepseek_v32"), _ALL_HEADS),
    **dict.fromkeys(("glm4_moe_lite", "glm_moe_dsa", "longcat_flash"), _ALL_HEADS),
    **dict.fromkeys(("minicpm3", "youtu"), _ALL_HEADS),
    "dots1": {"n_shared_experts": 1},
    "dots3_note_text": {"num_key_value_heads": 4},
    "gpt_neo": {"attention_types": [[["global", "local"], N_LAYERS // 2]]},
    "gemma3n_text": {"num_kv_shared_layers": 0},
    **dict.fromkeys(("lfm2", "lfm2_moe"), _CONVOLUTIONS),
    "mamba2": {"num_heads": 8},
    "reformer": {"axial_pos_embds": False},
    "zamba2": {"layer_types": ["mamba", "hybrid"] * (N_LAYERS // 2)},
    "zaya": {"num_experts_per_tok": 1},
}
"""Settings of types whose classes check more than sizes."""


def small_settings(known: Mapping[str, Any]) -> dict[str, Any]:
    """The settings of a model that are sizes, as those of a small one."""
    settings: dict[str, Any] = {}
    for name, value in known.items():
        if isinstance(value, dict) and value.get("model_type") in transformers.CONFIG_MAPPING:
            kind = transformers.CONFIG_MAPPING[value["model_type"]]
            settings[name] = {"model_type": kind.model_type, **small_settings(kind().to_dict())}
        elif isinstance(value, dict) and name in ("attn_config", "ffn_config"):
            settings[name] = value | small_settings(value)
        elif type(value) is int or (value is None and name.endswith(_WITHOUT_DEFAULT)):
            size = next((n for p, n in _SIZES.items() if re.fullmatch(p, name)), None)
            if size is not None and not (name == "head_dim" and "qk_rope_head_dim" in known):
                settings[name] = size
    return settings


def random_model(model_type: str) -> tuple[Any, str]:
    """A model with weights far from initial ones, in float64, and the name of its module."""
    kind = transformers.CONFIG_MAPPING[model_type]
    extra: dict[str, Any] = {"is_decoder": True} if hasattr(kind(), "is_decoder") else {}
    known = kind().to_dict() | dict.fromkeys(kind.attribute_map, 0)
    config = kind(**{**small_settings(known), **extra, **_OWN.get(model_type, {})})
    module = transformers.MODEL_FOR_CAUSAL_LM_MAPPING[kind].__module__.split(".")[2]
    with in_float64(module):
        model = transformers.AutoModelForCausalLM.from_config(config, dtype=torch.float64).eval()
    if any("expert" in name for name in config.to_dict()):
        model.set_experts_implementation("eager")  # that of float64
    generator = torch.Generator().manual_seed(5)
    for weight in dict.fromkeys(model.parameters()):
        nn.init.normal_(weight, std=0.3, generator=generator)
    return model, module
