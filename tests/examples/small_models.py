"""Folders of small random models, written without the library but for names and shapes."""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
import transformers
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
    settings = {**LLAMA, "num_key_value_heads": n_kv_heads}
    return _tensors_of(settings, left_out=["lm_head"] * tied)


def t5_tensors(*, gated: bool = True, head: bool = True) -> dict[str, Tensor]:
    """The tensors of a T5 with one layer on either side."""
    copies = ["encoder.embed_tokens", "decoder.embed_tokens"]
    left_out = copies if head else [*copies, "lm_head"]
    return _tensors_of(GATED_T5 if gated else T5, left_out=left_out)


def write_model(folder: Path, config: Mapping[str, Any], tensors: Mapping[str, Tensor]) -> Path:
    folder.mkdir(exist_ok=True)
    (folder / "config.json").write_text(json.dumps(dict(config)))
    write_tensors(folder / "model.safetensors", tensors)
    return folder


def set_in_config(folder: Path, *left_out: str, **values: Any) -> None:
    path = folder / "config.json"
    settings = json.loads(path.read_text()) | values
    path.write_text(json.dumps({k: v for k, v in settings.items() if k not in left_out}))


def write_tensors(path: Path, tensors: Mapping[str, Tensor]) -> None:
    save_file({n: t.contiguous() for n, t in tensors.items()}, path, metadata={"format": "pt"})


def shapes_of(settings: Mapping[str, Any]) -> dict[str, torch.Size]:
    """Names and shapes of the tensors that `transformers` gives a model."""
    with torch.device("meta"):
        config = transformers.AutoConfig.for_model(**settings)
        weights = getattr(transformers, settings["architectures"][0])(config).state_dict()
    return {name: weight.shape for name, weight in weights.items()}


def _tensors_of(settings: Mapping[str, Any], left_out: Sequence[str]) -> dict[str, Tensor]:
    generator = torch.Generator().manual_seed(7)
    return {
        name: torch.randn(shape, generator=generator) * (0.3 if len(shape) > 1 else 0.1)
        + (len(shape) == 1)
        for name, shape in shapes_of(settings).items()
        if not name.startswith(tuple(left_out))
    }
