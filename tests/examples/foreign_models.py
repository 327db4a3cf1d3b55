"""Small random models of `transformers`, each with settings that one may forget."""

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import torch
import transformers
from tests.jobs.tuning_files import N_IDS as N_IDS  # as other tests import it from here
from torch import Tensor, nn

LONGEST = 64


def small_gpt2(**settings: Any) -> Any:
    """A GPT-2 without dropout, of two layers if nothing else is said."""
    sizes = {"vocab_size": N_IDS, "n_positions": LONGEST, "n_embd": 16, "n_layer": 2, "n_head": 2}
    ids = {"bos_token_id": 1, "eos_token_id": 2}
    dropout = {"attn_pdrop": 0.0, "embd_pdrop": 0.0, "resid_pdrop": 0.0}
    config = transformers.GPT2Config(**{**sizes, **ids, **dropout, **settings})
    return transformers.GPT2LMHeadModel(config)


def _gpt2(**settings: Any) -> Any:
    return small_gpt2(n_layer=4, n_inner=40, layer_norm_epsilon=1e-3, **settings)


def _t5(name: str = "T5", **settings: Any) -> Any:
    config = getattr(transformers, f"{name}Config")(
        vocab_size=N_IDS,
        d_model=16,
        d_kv=6,
        d_ff=40,
        num_heads=2,
        layer_norm_epsilon=1e-3,
        dropout_rate=0.0,
        decoder_start_token_id=0,
        eos_token_id=1,
        **settings,
    )
    return getattr(transformers, f"{name}ForConditionalGeneration")(config)


def _t5_1_1(name: str = "T5", *, has_head: bool = True, tied: bool = True) -> Any:
    """A model like T5 1.1: version 5 calls all of them tied, as `tied` tells, 4 those that are."""
    model = _t5(
        name,
        num_layers=2,
        num_decoder_layers=3,
        feed_forward_proj="gated-gelu",
        tie_word_embeddings=False,
        relative_attention_num_buckets=8,
        relative_attention_max_distance=12,
    )
    # Newer versions tie the head even so, unless a file holds another one.
    if has_head:
        model.lm_head.weight = nn.Parameter(torch.empty(N_IDS, 16))
    model.config.tie_word_embeddings = tied
    return model


def _llama(name: str, **settings: Any) -> Any:
    config = getattr(transformers, f"{name}Config")(
        vocab_size=N_IDS,
        hidden_size=16,
        intermediate_size=24,
        num_hidden_layers=3,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=LONGEST,
        rms_norm_eps=1e-2,
        bos_token_id=1,
        eos_token_id=2,
        **{"rope_parameters": {"rope_type": "default", "rope_theta": 50.0}} | settings,
    )
    return getattr(transformers, f"{name}ForCausalLM")(config)


LLAMA3 = {
    "rope_type": "llama3",
    "rope_theta": 50.0,
    "factor": 16.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 32,
}
YARN = {
    "rope_type": "yarn",
    "rope_theta": 50.0,
    "factor": 4.0,
    "beta_fast": 3.0,
    "mscale": 0.7,
    "mscale_all_dim": 0.2,
    "original_max_position_embeddings": 16,
}
LINEAR = {"rope_type": "linear", "rope_theta": 50.0, "factor": 4.0}
MODELS: Mapping[str, Callable[[], Any]] = {
    "gpt2": _gpt2,
    "gpt2-untied": lambda: _gpt2(tie_word_embeddings=False),
    "t5": lambda: _t5(num_layers=2),
    "t5-1.1": lambda: _t5_1_1(tied=False),
    "t5-1.1-v5": _t5_1_1,
    "t5-1.1-v5-tied": lambda: _t5_1_1(has_head=False),
    "mt5": lambda: _t5_1_1("MT5", tied=False),
    "mt5-v5-tied": lambda: _t5_1_1("MT5", has_head=False),
    "llama": lambda: _llama("Llama", rope_parameters=LLAMA3),
    "llama-linear": lambda: _llama("Llama", rope_parameters=LINEAR, tie_word_embeddings=True),
    "llama-yarn": lambda: _llama("Llama", rope_parameters=YARN, attention_bias=True),
    "mistral": lambda: _llama("Mistral", head_dim=6, sliding_window=LONGEST),
    "qwen2": lambda: _llama("Qwen2", tie_word_embeddings=True),
    "qwen3": lambda: _llama("Qwen3", head_dim=6),
}
"""Makers of models, by name."""


def random_model(name: str) -> Any:
    """A model with weights far from initial ones: no norm scales by 1, no bias is 0."""
    model = MODELS[name]()
    generator = torch.Generator().manual_seed(5)
    for parameter in dict.fromkeys(model.parameters()):
        nn.init.normal_(parameter, std=0.3, generator=generator)
    for module in model.modules():
        if "Norm" in type(module).__name__ and isinstance(module.weight, Tensor):
            nn.init.uniform_(module.weight, 0.5, 1.5, generator=generator)
    return model.eval()


def saved_model(name: str, folder: Path, dtype: torch.dtype = torch.float32) -> Any:
    model = random_model(name).to(dtype)
    model.save_pretrained(folder)
    return model


def foreign_logits(model: Any, tokens: list[int], source: list[int] | None) -> Tensor:
    """Logits after each token of the decoder."""
    with torch.no_grad():
        if source is None:
            logits: Tensor = model(input_ids=torch.tensor([tokens])).logits
        else:
            ids, decoded = torch.tensor([source]), torch.tensor([tokens])
            logits = model(input_ids=ids, decoder_input_ids=decoded).logits
    return logits[0]
