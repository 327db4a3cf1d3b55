"""GPT-2 of Hugging Face: its settings and tensors."""

import re
from collections.abc import Iterator, Mapping

from dynapipe_hpc.architecture.decoder import GptShape
from dynapipe_hpc.training.huggingface.model_type_mapping import ModelTypeMapping, Values
from dynapipe_hpc.training.huggingface.settings import Settings
from dynapipe_hpc.training.huggingface.tensor_map import TensorMap, conv1d, same


def _model(settings: Settings) -> Values:
    settings.require("activation_function", "gelu_new", "gelu_pytorch_tanh")
    settings.require("scale_attn_weights", True)
    settings.require("scale_attn_by_inverse_layer_idx", False)
    settings.require("add_cross_attention", False)
    width = settings.integer("n_embd", 768)
    return {
        "family": "gpt",
        "n_layers": settings.integer("n_layer", 12),
        "hidden_size": width,
        "n_heads": settings.integer("n_head", 12),
        "ffn_size": settings.integer("n_inner", 4 * width),
        "vocab_size": settings.integer("vocab_size", 50257),
        "max_tokens": settings.integer("n_positions", 1024),
        "norm_epsilon": settings.number("layer_norm_epsilon", 1e-5),
        "tied_head": settings.flag("tie_word_embeddings", default=True),
        "dropout": settings.share("resid_pdrop", 0.1),
    }


def _config(shape: GptShape) -> Values:
    return {
        "n_layer": shape.n_layers,
        "n_embd": shape.hidden_size,
        "n_head": shape.n_heads,
        "n_inner": shape.ffn_size,
        "vocab_size": shape.vocab_size,
        "n_positions": shape.max_tokens,
        "layer_norm_epsilon": shape.norm_epsilon,
        "tie_word_embeddings": shape.tied_head,
        "activation_function": "gelu_new",
        **_dropout(shape),
    }


def _dropout(shape: GptShape) -> Values:
    rate = shape.dropout_rate
    return {"attn_pdrop": 0.0, "embd_pdrop": rate, "resid_pdrop": rate}


def _tensors(shape: GptShape) -> Iterator[TensorMap]:
    width, inner = shape.hidden_size, shape.ffn_size
    vocabulary, positions = (shape.vocab_size, width), (shape.max_tokens, width)
    yield same("embedding.tokens.weight", vocabulary, "transformer.wte.weight")
    yield same("embedding.positions.weight", positions, "transformer.wpe.weight")
    for i in range(shape.n_layers):
        ours, theirs = f"layers.{i}", f"transformer.h.{i}"
        yield from _norm(f"{ours}.attention_norm", f"{theirs}.ln_1", width)
        joined = f"{ours}.attention.query_key_value"
        yield from conv1d(joined, f"{theirs}.attn.c_attn", 3 * width, width)
        yield from conv1d(f"{ours}.attention.output", f"{theirs}.attn.c_proj", width, width)
        yield from _norm(f"{ours}.feed_forward_norm", f"{theirs}.ln_2", width)
        yield from conv1d(f"{ours}.feed_forward.inner", f"{theirs}.mlp.c_fc", inner, width)
        yield from conv1d(f"{ours}.feed_forward.output", f"{theirs}.mlp.c_proj", width, inner)
    yield from _norm("head.norm", "transformer.ln_f", width)
    if not shape.tied_head:
        yield same("head.logits.weight", vocabulary, "lm_head.weight")


def _norm(name: str, source: str, width: int) -> Iterator[TensorMap]:
    for kind in ("weight", "bias"):
        yield same(f"{name}.{kind}", (width,), f"{source}.{kind}")


def _copies(shape: GptShape) -> Mapping[str, str]:
    return {"lm_head.weight": "transformer.wte.weight"} if shape.tied_head else {}


GPT2 = ModelTypeMapping(
    model_type="gpt2",
    architecture="GPT2LMHeadModel",
    family="gpt",
    prefix="transformer.",
    model=_model,
    config=_config,
    dropout=_dropout,
    fits=lambda _: True,
    tensors=_tensors,
    copies=_copies,
    ignored=re.compile(r"transformer\.h\.\d+\.attn\.(masked_)?bias"),
    longest=lambda _: None,
)
