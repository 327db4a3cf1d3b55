"""T5 and mT5 of Hugging Face: their settings and tensors."""

import re
from collections.abc import Callable, Iterator, Mapping

from dynapipe_hpc.architecture.t5 import T5Shape
from dynapipe_hpc.training.huggingface.mapping import (
    LONGEST,
    ModelTypeMapping,
    Settings,
    TensorMap,
    Values,
    same,
    sizes_of,
)
from dynapipe_hpc.training.huggingface.tensors import has_weights, stored_tensors

_SHARED, _HEAD = "shared.weight", "lm_head.weight"
_COPIES = ("encoder.embed_tokens.weight", "decoder.embed_tokens.weight")
_EMBEDDINGS = (_SHARED, *_COPIES)
_SIZES = {
    "n_layers": "num_layers",
    "hidden_size": "d_model",
    "n_heads": "num_heads",
    "head_size": "d_kv",
    "ffn_size": "d_ff",
    "vocab_size": "vocab_size",
}
MAX_TOKENS = 512  # with which T5 was pretrained; positions are relative


def _t5_model(settings: Settings) -> Values:
    # Version 4 of `transformers` has one setting for both a tied head and scaled logits.
    tied = settings.flag("tie_word_embeddings", default=True)
    return _model(settings, scaled=settings.flag("scale_decoder_outputs", default=tied))


def _mt5_model(settings: Settings) -> Values:
    # Version 5 never scales its logits, whatever the file says.
    return _model(settings, scaled=False)


def _model(settings: Settings, *, scaled: bool) -> Values:
    settings = settings.completed("feed_forward_proj")
    sizes = sizes_of(settings, _SIZES)
    settings.require("feed_forward_proj", "relu", "gated-gelu")
    return {
        "family": "t5",
        **sizes,
        "n_decoder_layers": settings.integer("num_decoder_layers", sizes["n_layers"]),
        "max_tokens": settings.integer("n_positions", MAX_TOKENS),
        "norm_epsilon": settings.number("layer_norm_epsilon", 1e-6),
        "gated": settings.get("feed_forward_proj", "relu") == "gated-gelu",
        **_head(settings, scaled=scaled),
        "n_buckets": settings.integer("relative_attention_num_buckets", 32),
        "max_distance": settings.integer("relative_attention_max_distance", 128),
        "dropout": settings.share("dropout_rate", 0.1),
    }


def _head(settings: Settings, *, scaled: bool) -> Values:
    """Values of the [model] table: where logits come from, and whether they are scaled.

    Version 5 of `transformers` writes every T5 as tied, and ties it if the files hold no head.
    """
    if scaled:
        return {"tied_head": True}
    folder = settings.path.parent
    names = stored_tensors(folder) if has_weights(folder) else {}
    if names and not (_HEAD in names and names.keys() & _EMBEDDINGS):
        return {"tied_head": True, "scale_decoder_outputs": False}
    return {"tied_head": False}


def _config(shape: T5Shape) -> Values:
    gated, tied = shape.gated, shape.tied_head
    return {
        **{theirs: getattr(shape, ours) for ours, theirs in _SIZES.items()},
        "num_decoder_layers": shape.n_decoder_layers or shape.n_layers,
        "n_positions": shape.max_tokens,
        "layer_norm_epsilon": shape.norm_epsilon,
        "feed_forward_proj": "gated-gelu" if gated else "relu",
        "tie_word_embeddings": tied,
        "scale_decoder_outputs": shape.divides_outputs,
        "relative_attention_num_buckets": shape.n_buckets,
        "relative_attention_max_distance": shape.max_distance,
        "is_encoder_decoder": True,
        **_dropout(shape),
    }


def _dropout(shape: T5Shape) -> Values:
    return {"dropout_rate": shape.dropout_rate}


def _tensors(shape: T5Shape) -> Iterator[TensorMap]:
    width, vocabulary = shape.hidden_size, (shape.vocab_size, shape.hidden_size)
    buckets = (shape.n_buckets, shape.n_heads)
    n_layers = {"encoder": shape.n_layers, "decoder": shape.n_decoder_layers or shape.n_layers}
    yield same("embedding.weight", vocabulary, _SHARED)
    for side, n in n_layers.items():
        bias = f"{side}.block.0.layer.0.SelfAttention.relative_attention_bias.weight"
        yield same(f"{side}_bias.weight", buckets, bias)
        for i in range(n):
            yield from _layer(shape, f"{side}.{i}", f"{side}.block.{i}.layer")
        yield same(f"{side}_norm.weight", (width,), f"{side}.final_layer_norm.weight")
    if not shape.tied_head:
        yield same("head.logits.weight", vocabulary, _HEAD)


def _layer(shape: T5Shape, ours: str, theirs: str) -> Iterator[TensorMap]:
    width, inner = shape.hidden_size, shape.ffn_size
    blocks = [("attention", "SelfAttention")]
    if ours.startswith("decoder"):
        blocks.append(("cross_attention", "EncDecAttention"))
    for number, (name, source) in enumerate(blocks):
        norm = f"{theirs}.{number}.layer_norm.weight"
        yield same(f"{ours}.{name}_norm.weight", (width,), norm)
        yield from _attention(shape, f"{ours}.{name}", f"{theirs}.{number}.{source}")
    last = f"{theirs}.{len(blocks)}"
    yield same(f"{ours}.feed_forward_norm.weight", (width,), f"{last}.layer_norm.weight")
    name, dense = f"{ours}.feed_forward", f"{last}.DenseReluDense"
    if shape.gated:
        sources = {f"{dense}.wi_0.weight": inner, f"{dense}.wi_1.weight": inner}
        yield TensorMap(f"{name}.inner.weight", (2 * inner, width), sources)
    else:
        yield same(f"{name}.inner.weight", (inner, width), f"{dense}.wi.weight")
    yield same(f"{name}.output.weight", (width, inner), f"{dense}.wo.weight")


def _attention(shape: T5Shape, ours: str, theirs: str) -> Iterator[TensorMap]:
    width, heads = shape.hidden_size, shape.attention_size
    yield same(f"{ours}.query.weight", (heads, width), f"{theirs}.q.weight")
    sources = {f"{theirs}.k.weight": heads, f"{theirs}.v.weight": heads}
    yield TensorMap(f"{ours}.key_value.weight", (2 * heads, width), sources)
    yield same(f"{ours}.output.weight", (width, heads), f"{theirs}.o.weight")


def _copies(shape: T5Shape) -> Mapping[str, str]:
    names = [*_COPIES, _HEAD] if shape.tied_head else _COPIES
    return dict.fromkeys(names, _SHARED)


def _mapping(
    model_type: str, architecture: str, model: Callable[[Settings], Values]
) -> ModelTypeMapping:
    return ModelTypeMapping(
        model_type=model_type,
        architecture=architecture,
        family="t5",
        model=model,
        config=_config,
        dropout=_dropout,
        tensors=_tensors,
        copies=_copies,
        ignored=re.compile(
            r"decoder\.block\.0\.layer\.1\.EncDecAttention\.relative_attention_bias\.weight"
        ),
        longest=lambda _: LONGEST,
    )


T5 = _mapping("t5", "T5ForConditionalGeneration", _t5_model)
MT5 = _mapping("mt5", "MT5ForConditionalGeneration", _mt5_model)
