"""Every causal language model of `transformers`: trained as a plain loop does, or refused."""

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from tests.examples.any_decoders import SAMPLES, draw_weights, loaded_stages, outcome, plain_loss
from tests.examples.foreign_models import N_IDS
from tests.examples.training_case import packed, padded
from tests.oracles.in_float64 import in_float64
from torch import Tensor

from dynapipe_hpc.architecture.transformers import TransformersShape
from dynapipe_hpc.data.errors import InputError
from dynapipe_hpc.models.transformers.parts import decoder_parts
from dynapipe_hpc.training.huggingface.describe_model import describe_model
from dynapipe_hpc.training.huggingface.origin import find_origin

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
    draw_weights(model)
    return model, module


PAGE = Path(__file__).parents[3] / "docs" / "model_types.md"
EQUAL, NOT_ESTIMATED = "equal", "equal; costs must be measured"
NOT_MADE = "transformers makes no small random model of its default settings"
N_TOKENS = max(sample.input_tokens + sample.target_tokens for sample in SAMPLES)


def outcome_of(model_type: str, folder: Path) -> str:
    """Equality of a type with a plain loop, or the sentence that refuses it."""
    try:
        model, module = random_model(model_type)
    except Exception:
        return NOT_MADE
    model.save_pretrained(folder / "model")
    try:
        describe_model(folder / "model")
    except InputError as error:
        return short(str(error))
    origin = find_origin(folder / "model")
    if origin.shape.max_tokens < N_TOKENS:  # the own family of a model with windows
        origin = find_origin(folder / "model", "transformers")
    loss = plain_loss(module, model)
    for weight in model.parameters():  # gradients in place of weights
        weight.data = torch.zeros_like(weight) if weight.grad is None else weight.grad
    model.save_pretrained(folder / "gradients")
    expected: dict[str, Tensor] = {}
    for stage in loaded_stages(find_origin(folder / "gradients", origin.shape.family), 2):
        expected |= {name: weight.detach() for name, weight in stage.named_parameters()}
    for microbatch in (padded(SAMPLES), packed(SAMPLES, fill=3)):
        found_loss, found = outcome(loaded_stages(origin, 2), [microbatch])
        assert found_loss == pytest.approx(loss, rel=1e-11), model_type
        assert found.keys() == expected.keys()
        for name, gradient in expected.items():
            scale = 1e-11 * float(gradient.abs().max())
            torch.testing.assert_close(
                found[name], gradient, rtol=1e-9, atol=scale, msg=f"{model_type} {name}"
            )
    if isinstance(origin.shape, TransformersShape):
        try:
            decoder_parts(origin.shape, "float32", is_packed=False)
        except InputError:
            return NOT_ESTIMATED
    return EQUAL


def short(refusal: str) -> str:
    """A refusal without its remedy, its file, and the names and numbers of one model."""
    text = re.split(r"; |\. |: by config.json|, (?:which is|and) ", refusal)[0]
    text = re.sub(r"(\S+ has the shape \[.*\])+", "… has the shape …", text)
    text = re.sub(r"^\S*/\S*: ", "", text)
    for pattern in (
        r"(?:[a-z_]+\.\S*\*\.[\w.*]+(?:, )?)+",  # tensors
        r"\b\w+(?:For\w+LM|Attention)(?= of)",
        r"(?<=cannot build )an? \S+",
        r"(?<=Error: )\w+LM",
        r"(?<=without which no )\S+",
        r"(?<='model_type' is )'\S+'",
        r"<class .*?>",
        r"\d+ of \d+",
    ):
        text = re.sub(pattern, "…", text)
    return text.replace(f"transformers {transformers.__version__}", "transformers")


def page_of(outcomes: Mapping[str, str]) -> str:
    types: dict[str, list[str]] = {}
    for model_type, text in sorted(outcomes.items()):
        types.setdefault(text, []).append(f"`{model_type}`")
    rows = [f"| {text} | {', '.join(types[text])} |" for text in sorted(types, key=_order)]
    return "\n".join(
        (
            "# Decoders of transformers, type by type",
            "",
            f"A small random model of each of the {len(outcomes)} types of causal language models "
            f"in `transformers` {transformers.__version__}",
            "either trains on two stages in float64 with the same loss and gradients as a plain",
            "loop of `transformers`, or is refused before a weight is read.",
            "`test_every_model_type.py` in `tests/models/transformers` compares this page with",
            "what it sees.",
            "Settings are the defaults of the type's class, with small sizes: with others, a type",
            "may be refused, or supported.",
            "",
            "| what is seen | types |",
            "|---|---|",
            *rows,
            "",
        )
    )


def _order(text: str) -> tuple[bool, str]:
    return not text.startswith(EQUAL), text


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.filterwarnings("ignore")  # of classes of `transformers`
def test_every_type_is_as_its_page_says(tmp_path: Path) -> None:
    names = transformers.models.auto.modeling_auto.MODEL_FOR_CAUSAL_LM_MAPPING_NAMES
    page = page_of({name: outcome_of(name, tmp_path / name) for name in names})
    version = f"`transformers` {transformers.__version__}"
    assert version not in PAGE.read_text() or PAGE.read_text() == page


@pytest.mark.parametrize("model_type", ["nanochat", "jetmoe"])
def test_a_type_trains_as_in_a_plain_loop(model_type: str, tmp_path: Path) -> None:
    assert outcome_of(model_type, tmp_path) == (NOT_ESTIMATED if model_type == "jetmoe" else EQUAL)
