"""Models of `transformers` of our sizes, and our weights by their names."""

import re
from collections.abc import Mapping
from typing import Any

import torch
import transformers
from tests.oracles.in_float64 import in_float64
from torch import Tensor, nn

from dynapipe_hpc.architecture.decoder import GptShape, LlamaShape
from dynapipe_hpc.architecture.model_shape import ModelShape
from dynapipe_hpc.architecture.t5 import T5Shape

GPT_NAMES = (
    (r"embedding\.tokens", "transformer.wte"),
    (r"embedding\.positions", "transformer.wpe"),
    (r"^layers\.", "transformer.h."),
    ("attention_norm", "ln_1"),
    ("feed_forward_norm", "ln_2"),
    (r"attention\.query_key_value", "attn.c_attn"),
    (r"attention\.output", "attn.c_proj"),
    (r"feed_forward\.inner", "mlp.c_fc"),
    (r"feed_forward\.output", "mlp.c_proj"),
    (r"head\.norm", "transformer.ln_f"),
    (r"head\.logits", "lm_head"),
)
T5_NAMES = (
    (r"^embedding", "shared"),
    (r"^(en|de)coder_norm", r"\1coder.final_layer_norm"),
    (r"^(en|de)coder_bias", r"\1coder.block.0.layer.0.SelfAttention.relative_attention_bias"),
    (r"^(en|de)coder\.(\d)\.", r"\1coder.block.\2.layer."),
    (r"cross_attention_norm", "1.layer_norm"),
    (r"cross_attention\.", "1.EncDecAttention."),
    (r"attention_norm", "0.layer_norm"),
    (r"layer\.attention\.", "layer.0.SelfAttention."),
    (r"(encoder.*)feed_forward_norm", r"\g<1>1.layer_norm"),
    (r"(decoder.*)feed_forward_norm", r"\g<1>2.layer_norm"),
    (r"(encoder.*)feed_forward\.", r"\g<1>1.DenseReluDense."),
    (r"(decoder.*)feed_forward\.", r"\g<1>2.DenseReluDense."),
    (r"Attention\.query", "Attention.q"),
    (r"Attention\.output", "Attention.o"),
    (r"Dense\.output", "Dense.wo"),
    (r"^head\.logits", "lm_head"),
)
LLAMA_NAMES = (
    (r"embedding\.tokens", "model.embed_tokens"),
    (r"^layers\.", "model.layers."),
    (r"attention_norm", "input_layernorm"),
    (r"feed_forward_norm", "post_attention_layernorm"),
    (r"attention\.output", "self_attn.o_proj"),
    (r"attention\.(query|key|value)", lambda found: f"self_attn.{found[1][0]}_proj"),
    (r"feed_forward\.output", "mlp.down_proj"),
    (r"feed_forward\.", "mlp."),
    (r"head\.norm", "model.norm"),
    (r"head\.logits", "lm_head"),
)
NAMES: Mapping[str, Any] = {"gpt": GPT_NAMES, "llama": LLAMA_NAMES, "t5": T5_NAMES}
THEIR_TYPES = {"gpt": "gpt2", "llama": "llama", "t5": "t5"}


def their_name(name: str, shape: ModelShape) -> str:
    """Name of a layer or weight there, but for the last part of joined maps."""
    for pattern, other in NAMES[shape.family]:
        name = re.sub(pattern, other, name)
    return name


def parts_of_map(name: str, shape: ModelShape) -> Mapping[str, str]:
    """Layers there that a map with another name is: theirs by the names of ours, in order."""
    if shape.family == "llama" and name == "inner":
        return {"gate": "gate_proj", "up": "up_proj"}
    if shape.family == "t5" and name == "key_value":
        return {"key": "k", "value": "v"}
    if isinstance(shape, T5Shape) and name == "inner":
        return {"gate": "wi_0", "up": "wi_1"} if shape.gated else {"up": "wi"}
    return {}


def renamed(weights: Mapping[str, Tensor], shape: ModelShape) -> dict[str, Tensor]:
    """Unsplit weights by their names there, as they are stored there; views."""
    found: dict[str, Tensor] = {}
    for name, weight in weights.items():
        other = their_name(name, shape)
        ours = name.removesuffix(".weight").rpartition(".")[2]
        if parts := parts_of_map(ours, shape):
            blocks = weight.chunk(len(parts))
            found |= {
                other.replace(ours, p): b for p, b in zip(parts.values(), blocks, strict=True)
            }
        elif shape.family == "gpt" and name.startswith("layers.") and weight.ndim == 2:
            found[other] = weight.T
        else:
            found[other] = weight
    return found


def state_of(weights: Mapping[str, Tensor], shape: ModelShape) -> dict[str, Tensor]:
    """All of `renamed`, and the copies that are tied there."""
    found = renamed(weights, shape)
    if shape.family == "t5":
        names = ("encoder.embed_tokens.weight", "decoder.embed_tokens.weight", "lm_head.weight")
        return {**dict.fromkeys(names, weights["embedding.weight"]), **found}
    return {"lm_head.weight": weights["embedding.tokens.weight"], **found}


def their_model(shape: ModelShape) -> Any:
    """A model of our sizes, in float64, to be computed with `in_float64`."""
    with in_float64(THEIR_TYPES[shape.family]):
        model = _MAKERS[shape.family](shape).double().eval()
    if not shape.tied_head:
        # Newer versions tie the head of a T5 even so.
        model.lm_head.weight = nn.Parameter(torch.empty_like(model.lm_head.weight))
    return model


def _gpt(shape: GptShape) -> Any:
    config = transformers.GPT2Config(
        vocab_size=shape.vocab_size,
        n_positions=shape.max_tokens,
        n_embd=shape.hidden_size,
        n_layer=shape.n_layers,
        n_head=shape.n_heads,
        n_inner=shape.ffn_size,
        resid_pdrop=0.0,
        embd_pdrop=0.0,
        attn_pdrop=0.0,
        layer_norm_epsilon=shape.norm_epsilon,
        tie_word_embeddings=shape.tied_head,
        bos_token_id=0,
        eos_token_id=0,
    )
    return transformers.GPT2LMHeadModel(config)


def _llama(shape: LlamaShape) -> Any:
    config = transformers.LlamaConfig(
        vocab_size=shape.vocab_size,
        hidden_size=shape.hidden_size,
        intermediate_size=shape.ffn_size,
        num_hidden_layers=shape.n_layers,
        num_attention_heads=shape.n_heads,
        num_key_value_heads=shape.n_kv_heads,
        head_dim=shape.head_size,
        max_position_embeddings=shape.max_tokens,
        rms_norm_eps=shape.norm_epsilon,
        rope_parameters={"rope_type": "default", "rope_theta": shape.rope_theta},
        tie_word_embeddings=shape.tied_head,
        bos_token_id=0,
        eos_token_id=0,
    )
    return transformers.LlamaForCausalLM(config)


def _t5(shape: T5Shape) -> Any:
    config = transformers.T5Config(
        vocab_size=shape.vocab_size,
        d_model=shape.hidden_size,
        d_kv=shape.head_size,
        d_ff=shape.ffn_size,
        num_layers=shape.n_layers,
        num_decoder_layers=shape.n_decoder_layers,
        num_heads=shape.n_heads,
        dropout_rate=0.0,
        feed_forward_proj="gated-gelu" if shape.gated else "relu",
        tie_word_embeddings=shape.tied_head,
        relative_attention_num_buckets=shape.n_buckets,
        relative_attention_max_distance=shape.max_distance,
        layer_norm_epsilon=shape.norm_epsilon,
        decoder_start_token_id=0,
    )
    return transformers.T5ForConditionalGeneration(config)


_MAKERS: Mapping[str, Any] = {"gpt": _gpt, "llama": _llama, "t5": _t5}
