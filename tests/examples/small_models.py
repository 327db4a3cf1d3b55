"""Folders of small random models, written without the library that defines them."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file
from torch import Tensor

N_IDS, WIDTH, INNER, HEAD = 11, 8, 12, 4
LLAMA: Mapping[str, Any] = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "vocab_size": N_IDS,
    "hidden_size": WIDTH,
    "intermediate_size": INNER,
    "num_hidden_layers": 1,
    "num_attention_heads": WIDTH // HEAD,
    "num_key_value_heads": 1,
    "max_position_embeddings": 16,
}
T5: Mapping[str, Any] = {
    "architectures": ["T5ForConditionalGeneration"],
    "model_type": "t5",
    "vocab_size": N_IDS,
    "d_model": WIDTH,
    "d_kv": HEAD,
    "d_ff": INNER,
    "num_heads": WIDTH // HEAD,
    "num_layers": 1,
    "decoder_start_token_id": 0,
}
GATED_T5: Mapping[str, Any] = {**T5, "feed_forward_proj": "gated-gelu"}


def llama_tensors(n_kv_heads: int = 1, *, tied: bool = False) -> dict[str, Tensor]:
    """The tensors of a Llama of one layer."""
    layer = "model.layers.0"
    shapes = {
        "model.embed_tokens.weight": (N_IDS, WIDTH),
        f"{layer}.input_layernorm.weight": (WIDTH,),
        f"{layer}.self_attn.q_proj.weight": (WIDTH, WIDTH),
        f"{layer}.self_attn.k_proj.weight": (n_kv_heads * HEAD, WIDTH),
        f"{layer}.self_attn.v_proj.weight": (n_kv_heads * HEAD, WIDTH),
        f"{layer}.self_attn.o_proj.weight": (WIDTH, WIDTH),
        f"{layer}.post_attention_layernorm.weight": (WIDTH,),
        f"{layer}.mlp.gate_proj.weight": (INNER, WIDTH),
        f"{layer}.mlp.up_proj.weight": (INNER, WIDTH),
        f"{layer}.mlp.down_proj.weight": (WIDTH, INNER),
        "model.norm.weight": (WIDTH,),
    }
    if not tied:
        shapes["lm_head.weight"] = (N_IDS, WIDTH)
    return _random(shapes)


def t5_tensors(*, gated: bool = True, head: bool = True) -> dict[str, Tensor]:
    """The tensors of a T5 with one layer on either side."""
    shapes: dict[str, tuple[int, ...]] = {"shared.weight": (N_IDS, WIDTH)}
    for side, attentions in (("encoder", ["SelfAttention"]), ("decoder", _OF_DECODER)):
        layers = f"{side}.block.0.layer"
        for i, attention in enumerate(attentions):
            for name in "qkvo":
                shapes[f"{layers}.{i}.{attention}.{name}.weight"] = (WIDTH, WIDTH)
            shapes[f"{layers}.{i}.layer_norm.weight"] = (WIDTH,)
        bias = f"{layers}.0.SelfAttention.relative_attention_bias.weight"
        shapes[bias] = (32, WIDTH // HEAD)
        last = len(attentions)
        for name in ("wi_0", "wi_1") if gated else ("wi",):
            shapes[f"{layers}.{last}.DenseReluDense.{name}.weight"] = (INNER, WIDTH)
        shapes[f"{layers}.{last}.DenseReluDense.wo.weight"] = (WIDTH, INNER)
        shapes[f"{layers}.{last}.layer_norm.weight"] = (WIDTH,)
        shapes[f"{side}.final_layer_norm.weight"] = (WIDTH,)
    if head:
        shapes["lm_head.weight"] = (N_IDS, WIDTH)
    return _random(shapes)


def write_model(folder: Path, config: Mapping[str, Any], tensors: Mapping[str, Tensor]) -> Path:
    """Writes a folder with a model, or overwrites it."""
    folder.mkdir(exist_ok=True)
    (folder / "config.json").write_text(json.dumps(dict(config)))
    write_tensors(folder / "model.safetensors", tensors)
    return folder


def write_tensors(path: Path, tensors: Mapping[str, Tensor]) -> None:
    """Writes a file of tensors."""
    save_file({n: t.contiguous() for n, t in tensors.items()}, path, metadata={"format": "pt"})


_OF_DECODER = ["SelfAttention", "EncDecAttention"]


def _random(shapes: Mapping[str, tuple[int, ...]]) -> dict[str, Tensor]:
    generator = torch.Generator().manual_seed(7)
    return {
        name: torch.randn(shape, generator=generator) * (0.3 if len(shape) > 1 else 0.1)
        + (len(shape) == 1)
        for name, shape in shapes.items()
    }
