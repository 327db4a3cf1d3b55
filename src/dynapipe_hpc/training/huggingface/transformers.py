"""Any decoder of `transformers`, described by its settings and the tensors of its files."""

import json
import re
from collections.abc import Iterator, Mapping
from typing import NamedTuple

from dynapipe_hpc.architecture.rope_scaling import (
    DYNAMIC,
    LONG,
    rotation_tables,
    rotation_type,
    short_tokens,
)
from dynapipe_hpc.architecture.transformers import LOGITS, NUMBER, TransformersShape
from dynapipe_hpc.data.errors import InputError, quoted
from dynapipe_hpc.training.huggingface.mapping import (
    LONGEST,
    ModelTypeMapping,
    Settings,
    TensorMap,
    Values,
    same,
)
from dynapipe_hpc.training.huggingface.tensors import stored_tensors

FAMILY = "transformers"
_LEFT_OUT = ("_name_or_path", "transformers_version", "dtype", "torch_dtype", "auto_map")
"""Settings that do not affect what is computed. No code that comes with a model is run."""
_ROTATIONS = ("default", "linear", "llama3", "yarn", "proportional", *LONG, DYNAMIC)
_SIZES = ("num_hidden_layers", "hidden_size", "num_attention_heads", "vocab_size")
_EMBEDDINGS: Mapping[str, str] = {"falcon": "word_embeddings"}
"""Names of embeddings that are not `embed_tokens`, by model type."""
_LAYER = re.compile(r"(.*?\.)(\d+)(\..*)")
_EXPERT = re.compile(r"(.*\.experts\.)(\d+)(\..*)")
_IGNORED = re.compile(r".*\.rotary_emb\.inv_freq")
_EPSILONS = ("rms_norm_eps", "layer_norm_eps", "layer_norm_epsilon", "norm_epsilon")


class _Experts(NamedTuple):
    """Names of the weights of experts, which `transformers` joins into one tensor."""

    block: str = "mlp"  # name in files of the module `mlp`
    joined: tuple[str, str] = ("gate_proj", "up_proj")
    down: str = "down_proj"


_EXPERTS: Mapping[str, _Experts] = {
    "mixtral": _Experts("block_sparse_moe", ("w1", "w3"), "w2"),
    **dict.fromkeys(("qwen2_moe", "qwen3_moe", "olmoe", "flex_olmo"), _Experts()),
    **dict.fromkeys(("hunyuan_v1_moe", "mellum", "cohere2_moe"), _Experts()),
}
"""Names by model type, for types whose files hold the tensors of each expert apart."""


def is_decoder(settings: Settings) -> bool:
    """Whether settings are those of a causal language model of `transformers`."""
    architectures = settings.get("architectures")
    names = architectures if isinstance(architectures, list) else []
    return isinstance(settings.get("model_type"), str) and any(
        isinstance(name, str) and name.endswith("ForCausalLM") for name in names
    )


def mapping_of_decoder(settings: Settings) -> ModelTypeMapping:
    """The mapping of a model that `transformers` computes."""
    if problem := settings_problem(settings):
        raise InputError(f"{settings.path}: {problem}")
    model_type = settings.get("model_type")
    architectures = settings.get("architectures", [])
    name = architectures[0] if isinstance(architectures, list) and architectures else ""
    return ModelTypeMapping(
        model_type=str(model_type),
        architecture=str(name),
        family=FAMILY,
        model=_model,
        config=lambda shape: json.loads(shape.settings),
        tensors=_tensors,
        copies=lambda shape: {LOGITS: shape.embedding} if shape.tied_head else {},
        ignored=_IGNORED,
        longest=_longest,
    )


def media_problem(settings: Settings) -> str:
    """Reason why a model of text and other media is refused; empty for a model of text alone."""
    for name in ("text_config", "vision_config", "audio_config"):
        if settings.get(name) is not None:
            return (
                f"has a '{name}', as models of several media have; save its text model alone, "
                "as docs/huggingface.md shows"
            )
    return ""


def settings_problem(settings: Settings) -> str:
    """Reason why settings do not allow training through `transformers`; empty if they do."""
    if problem := media_problem(settings):
        return problem
    if not is_decoder(settings):
        return "'architectures' names no class ...ForCausalLM, and only these are supported"
    if settings.get("is_encoder_decoder"):
        return "'is_encoder_decoder' is true, and only decoders are supported"
    for name in _SIZES:
        if settings.get(name) is None:
            return (
                f"has no '{name}', without which no {settings.get('model_type')} is supported; "
                "choose another model"
            )
    if settings.get("output_router_logits"):
        return (
            "'output_router_logits' is true, which adds a loss of routers that is not computed; "
            "set it to false to train without it"
        )
    if settings.get("alibi"):
        return "'alibi' is true, and biases of scores are not supported"
    if settings.get("is_causal") is False or settings.get("use_bidirectional_attention"):
        return "its attention is not causal, and only causal attention is supported"
    for table in rotation_tables(settings.values):
        rotation = rotation_type(table)
        if rotation not in _ROTATIONS:
            return (
                f"has rotary positions of the type {quoted(rotation)}, which is not supported; "
                f"choose a model of one of these types: {', '.join(_ROTATIONS)}"
            )
        if rotation == DYNAMIC and table.get("alpha"):
            return (
                f"has rotary positions of the type {DYNAMIC!r} with 'alpha', which is not supported"
            )
    return ""


def _max_tokens(settings: Settings) -> int:
    name = "max_position_embeddings"
    settings = settings.completed(name, f"original_{name}")
    n = short_tokens(settings.values)
    return settings.integer(name) if n is None else n


def _longest(settings: Settings) -> int:
    """Length limit of rows: none if positions are rotary and the same in rows of any length."""
    tables = list(rotation_tables(settings.values))
    differ = any(rotation_type(table) in (DYNAMIC, *LONG) for table in tables)
    is_rotary = tables or settings.get("rope_theta") is not None
    return LONGEST if is_rotary and not differ else _max_tokens(settings)


def _model(settings: Settings) -> Values:
    tensors = _weights(settings)
    width, n_heads = settings.integer("hidden_size"), settings.integer("num_attention_heads")
    epsilon = next((key for key in _EPSILONS if settings.get(key) is not None), _EPSILONS[0])
    values = {key: each for key, each in settings.values.items() if key not in _LEFT_OUT}
    if LOGITS in tensors:
        settings = settings.completed("tie_word_embeddings")
    tied = settings.flag("tie_word_embeddings", default=LOGITS not in tensors)
    _check_ends(settings, tensors, is_tied=tied)
    if tied:
        tensors.pop(LOGITS, None)
    return {
        "family": FAMILY,
        "model_type": settings.get("model_type"),
        "n_layers": settings.integer("num_hidden_layers"),
        "hidden_size": width,
        "n_heads": n_heads,
        "head_size": settings.integer("head_dim", max(1, width // n_heads)),
        "ffn_size": settings.integer("intermediate_size", 4 * width),
        "vocab_size": settings.integer("vocab_size"),
        "max_tokens": _max_tokens(settings),
        "norm_epsilon": settings.number(epsilon, 1e-6),
        "tied_head": tied,
        "settings": json.dumps(values, separators=(",", ":")),
        "tensors": tensors,
    }


def _check_ends(settings: Settings, tensors: dict[str, tuple[int, ...]], *, is_tied: bool) -> None:
    size = (settings.integer("vocab_size"), settings.integer("hidden_size"))
    matrices = {n: s for n, s in tensors.items() if len(s) == 2 and f".{NUMBER}." not in n}
    heads = {n: s for n, s in matrices.items() if n == LOGITS}
    tables = {n: s for n, s in matrices.items() if n != LOGITS}
    if is_tied and heads and not tables:
        layers = next(n for n in tensors if NUMBER in n).partition(f".{NUMBER}.")[0]
        name = _EMBEDDINGS.get(str(settings.get("model_type")), "embed_tokens")
        tables = {f"{layers.rpartition('.')[0]}.{name}.weight": heads[LOGITS]}
        tensors |= tables
    problems = [
        f"{n} has the shape {list(shape)}"
        for ends in (tables, heads)
        for n, shape in ends.items()
        if size not in ends.values()
    ]
    lacking = [] if tables else ["the embedding"]
    if not is_tied and not heads:
        lacking.append(LOGITS)
    if lacking:
        problems.append(f"{' and '.join(lacking)} is not there")
    if problems:
        raise InputError(
            f"{settings.path.parent}: {', '.join(problems)}: by config.json ('vocab_size', "
            f"'hidden_size', 'tie_word_embeddings': {str(is_tied).lower()}) a tensor of the shape "
            f"{list(size)} is expected; correct what is wrong there, or fetch all files again"
        )


def _weights(settings: Settings) -> dict[str, tuple[int, ...]]:
    model_type = str(settings.get("model_type"))
    experts = _EXPERTS.get(model_type, _Experts())
    shapes: dict[str, tuple[int, ...]] = {}
    n_layers: dict[str, int] = {}
    n_experts: dict[str, set[str]] = {}
    for stored, tensor in stored_tensors(settings.path.parent).items():
        name = stored
        if layer := _LAYER.fullmatch(stored):
            name = f"{layer[1]}{NUMBER}{layer[3]}".replace(f".{experts.block}.", ".mlp.")
        size = tensor.shape
        if expert := _EXPERT.fullmatch(name):
            name = f"{expert[1]}{NUMBER}{expert[3]}"
            n_experts.setdefault(name, set()).add(expert[2])
        if shapes.setdefault(name, size) != size:
            raise InputError(
                f"{settings.path.parent}: layers differ in the shape of {name}, which is not "
                "supported; choose another model"
            )
        n_layers[name] = n_layers.get(name, 0) + 1
    for name, n in n_layers.items():
        expected = settings.integer("num_hidden_layers") * len(n_experts.get(name, "1"))
        if NUMBER in name and n != expected:
            raise InputError(
                f"{settings.path.parent}: {n} of {expected} tensors named {name} are there; "
                "layers with different weights are not supported: choose another model"
            )
    if n_experts and model_type not in _EXPERTS:
        raise InputError(
            f"{settings.path.parent}: holds the tensors of each expert apart, which is supported "
            f"for these types only: {', '.join(_EXPERTS)}; choose another model"
        )
    joined = _joined(shapes, n_experts, experts)
    return {name: shape for name, shape in joined if not _IGNORED.fullmatch(name)}


def _joined(
    shapes: Mapping[str, tuple[int, ...]], n_experts: Mapping[str, set[str]], experts: _Experts
) -> Iterator[tuple[str, tuple[int, ...]]]:
    for name, shape in shapes.items():
        if name not in n_experts:
            yield name, shape
            continue
        start, kind = name.rsplit(f".{NUMBER}.", 1)
        kind, n = kind.removesuffix(".weight"), len(n_experts[name])
        if kind == experts.joined[0]:
            yield f"{start}.gate_up_proj", (n, 2 * shape[0], *shape[1:])
        elif kind == experts.down:
            yield f"{start}.down_proj", (n, *shape)


def _tensors(shape: TransformersShape) -> Iterator[TensorMap]:
    for pattern, size in shape.tensors.items():
        in_layers = f".{NUMBER}." in pattern
        for i in range(shape.n_layers if in_layers else 1):
            name = pattern.replace(NUMBER, str(i))
            yield _tensor_map(shape, name, tuple(size))


def _tensor_map(shape: TransformersShape, name: str, size: tuple[int, ...]) -> TensorMap:
    experts = _EXPERTS.get(shape.model_type)
    if experts is None:
        return same(name, size, name)
    stored = name.replace(".mlp.", f".{experts.block}.")
    start, _, kind = stored.rpartition(".")
    if len(size) != 3 or not start.endswith(".experts"):
        return same(name, size, stored)
    joined = experts.joined if kind == "gate_up_proj" else (experts.down,)
    n_rows = size[1] // len(joined)
    sources = {f"{start}.{e}.{each}.weight": n_rows for e in range(size[0]) for each in joined}
    return TensorMap(name, size, sources, is_stack=True)
