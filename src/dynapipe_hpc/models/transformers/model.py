"""A model of `transformers` without values, of which a pipeline stage keeps its own part."""

import copy
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import cycle, islice
from threading import Lock
from typing import Any

import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from dynapipe_hpc.architecture.rope_scaling import plain_rotations
from dynapipe_hpc.architecture.transformers import (
    NUMBER,
    SLIDING,
    TransformersShape,
    config_of,
    first_line,
    windows_of_layers,
)
from dynapipe_hpc.data.errors import InputError
from dynapipe_hpc.data.extras import optional_packages
from dynapipe_hpc.models.sharding.sharded_linear import ColumnLinear
from dynapipe_hpc.models.sharding.shards import ONE_SHARD
from dynapipe_hpc.models.transformers.attention import (
    ATTENTION,
    Scores,
    attention_interface,
)

META = torch.device("meta")
LAYERS_KEY = "num_hidden_layers"
FULL = "full_attention"
"""Kind of layers whose attention sees all earlier tokens."""


@dataclass(frozen=True, slots=True, eq=False)
class BuiltModel:
    """A causal language model of `transformers`, and where its parts are."""

    whole: Any
    decoder: Any
    layers_name: str
    layers: list[nn.Module]
    calls_sdpa: bool  # whether it calls torch's attention and not the attention interface
    last_modules: list[nn.Module]  # modules with weights behind the layers
    returns_tuples: bool = False  # whether layers return tuples, whose first element it takes

    def hold(self, kept: range, *, embedding: bool, head: bool) -> None:
        """Removes layers that are not kept, and the embedding or the norm and head unless held.

        What remains keeps its names in the unsplit model.
        """
        held = {str(i): self.layers[i] for i in kept}
        setattr(self.decoder, self.layers_name, nn.ModuleDict(held))
        removed = [] if embedding else [self.whole.get_input_embeddings()]
        removed += [] if head else [*self.last_modules, self.whole.lm_head]
        for parent in list(self.whole.modules()):
            for name, child in list(parent.named_children()):
                if any(child is module for module in removed):
                    setattr(parent, name, None)

    def replace_layers(self, calls: Sequence[Callable[..., Tensor]]) -> None:
        """Lets the decoder call functions in place of its layers."""
        # An attribute is found before the module of the same name, which holds a stage's layers.
        vars(self.decoder)[self.layers_name] = [
            LayerCall(layer, call, self.returns_tuples)
            for layer, call in zip(self.layers, calls, strict=True)
        ]


# Building sets torch's default type and the verbosity of `transformers`. Both are global to the
# process, so that threads must not build at once: each puts back what it found.
_BUILDING = Lock()


def build_model(shape: TransformersShape, dtype: torch.dtype) -> BuiltModel:
    """Builds the model on the device `meta`; only tensors computed from settings have values."""
    with optional_packages():
        from transformers import AttentionInterface
        from transformers.utils import logging
    AttentionInterface.register(ATTENTION, attention_interface)
    values = with_layers(plain_rotations(json.loads(shape.settings)), shape.n_layers)
    with _BUILDING:
        verbosity = logging.get_verbosity()
        logging.set_verbosity_error()  # every rank would repeat warnings
        try:
            return _built(shape, config_of(values), dtype)
        finally:
            logging.set_verbosity(verbosity)


def _built(shape: TransformersShape, config: Any, dtype: torch.dtype) -> BuiltModel:
    import transformers

    kind = transformers.MODEL_FOR_CAUSAL_LM_MAPPING.get(type(config), None)
    calls_sdpa = not getattr(kind, "_supports_attention_backend", False)
    attention = "sdpa" if calls_sdpa else ATTENTION
    options = {"attn_implementation": attention}
    # Torch groups the products of experts in types of up to 32 bits, if rows and columns of the
    # matrices take a multiple of 16 bytes. Other experts are computed one after another.
    sizes = [n for size in shape.tensors.values() if len(size) > 2 for n in size[1:]]
    if dtype == torch.float64 or any(n * dtype.itemsize % 16 for n in sizes):
        options["experts_implementation"] = "eager"
    try:
        model: Any = transformers.AutoModelForCausalLM.from_config(config, dtype=dtype, **options)
    except Exception as error:  # its classes may raise anything for unusual settings
        pad, n_rows = getattr(config, "pad_token_id", None), shape.vocab_size
        if isinstance(pad, int) and not -n_rows <= pad < n_rows:
            raise InputError(
                f"'pad_token_id' in config.json is {pad}, which is not a row of the embedding "
                f"('vocab_size' is {n_rows}); enter another token there, or null"
            ) from error
        raise InputError(
            f"transformers {transformers.__version__} cannot build a {shape.model_type} whose "
            f"attention is {attention}: {type(error).__name__}: {first_line(error)}; choose "
            "another model"
        ) from error
    model.eval()  # the mode in which dropout does nothing
    found = _parts(model, shape, calls_sdpa=calls_sdpa)
    _check_weights(found, shape)
    return found


def lists_of_layers(values: Mapping[str, Any]) -> dict[str, list[Any]]:
    return {
        key: value
        for key, value in values.items()
        if isinstance(value, list)
        and len(value) == values[LAYERS_KEY]
        and key != "architectures"
        and not key.endswith("token_id")
    }


def with_layers(values: Mapping[str, Any], n_layers: int) -> dict[str, Any]:
    """Settings of a model with another number of layers; lists of kinds of layers are repeated."""
    lists = {
        key: list(islice(cycle(value), n_layers)) for key, value in lists_of_layers(values).items()
    }
    return {**values, **lists, LAYERS_KEY: n_layers}


def _parts(model: Any, shape: TransformersShape, *, calls_sdpa: bool) -> BuiltModel:
    name = type(model).__name__
    decoder = getattr(model, model.base_model_prefix, None)
    if not isinstance(decoder, nn.Module):
        raise InputError(
            f"{name} of transformers cannot be trained: its decoder is not where its class "
            f"says ({model.base_model_prefix})"
        )
    lists = [(n, m) for n, m in decoder.named_children() if isinstance(m, nn.ModuleList)]
    problem = ""
    if len(lists) != 1 or len(lists[0][1]) != shape.n_layers:
        problem = "its decoder is not one list of layers"
    elif not isinstance(getattr(model, "lm_head", None), nn.Linear):
        problem = "its head is not a linear map of the name lm_head"
    elif kinds := unknown_kinds(model.config):
        problem = f"it has layers of the kinds {', '.join(sorted(kinds))}"
    elif any(isinstance(module, nn.Conv1d) for module in model.modules()):
        problem = "it has convolutions, which would mix the samples of packed rows"
    if problem:
        raise InputError(f"{name} of transformers cannot be trained: {problem}")
    inside = {model.get_input_embeddings(), *lists[0][1].modules()}
    last = {n: m for n, m in decoder.named_modules() if m._parameters and m not in inside}
    built = BuiltModel(model, decoder, lists[0][0], list(lists[0][1]), calls_sdpa, [*last.values()])
    first, returns_tuples = _run_without_layers(built, last, shape.hidden_size)
    if first:
        raise InputError(
            f"{name} of transformers cannot be trained: {', '.join(first)} runs before its "
            "layers and has weights, which every stage would need"
        )
    return replace(built, returns_tuples=returns_tuples)


def _run_without_layers(
    model: BuiltModel, last: Mapping[str, nn.Module], width: int
) -> tuple[list[str], bool]:
    """Names of modules that run before the last layer; whether layers must return tuples."""
    order: list[str | int] = []

    def passed(index: int, hidden: Tensor, *_: Any, **__: Any) -> Tensor:
        order.append(index)
        return hidden

    hooks, hidden = [], torch.zeros(1, 2, width, dtype=torch.empty(0).dtype, device="cpu")
    for name, module in last.items():
        hooks.append(module.register_forward_pre_hook(lambda *_, name=name: order.append(name)))
        for key, weight in module._parameters.items():
            if weight is not None:  # real numbers to compute with; norms have only few
                zeros = torch.zeros(weight.shape, dtype=hidden.dtype, device="cpu")
                module._parameters[key] = nn.Parameter(zeros)
    problems = []
    for returns_tuples in (False, True):
        order.clear()
        model = replace(model, returns_tuples=returns_tuples)
        model.replace_layers([partial(passed, i) for i in range(len(model.layers))])
        try:
            with torch.no_grad():
                output = model.decoder(
                    inputs_embeds=hidden,
                    position_ids=torch.arange(2, device="cpu").unsqueeze(0),
                    attention_mask=hidden.new_zeros(1, 1, 1, 1),
                    use_cache=False,
                )
            if output.last_hidden_state.shape == hidden.shape:
                break
        except Exception as error:  # its class may raise anything
            problems.append(f"{type(error).__name__}: {first_line(error)}")
        finally:
            del vars(model.decoder)[model.layers_name]
    else:
        raise InputError(
            f"{type(model.whole).__name__} of transformers cannot be trained: its decoder "
            f"fails without its layers ({'; '.join(problems) or 'its output has another shape'})"
        )
    for hook in hooks:
        hook.remove()
    before = order[: order.index(len(model.layers) - 1)]
    return [name for name in before if isinstance(name, str)], returns_tuples


def unknown_kinds(config: Any) -> set[str]:
    """Kinds of layers whose attention neither is full nor has a window."""
    chunked = {"chunked_attention"} if getattr(config, "attention_chunk_size", None) else set()
    return chunked | set(getattr(config, "layer_types", None) or ()) - {FULL, SLIDING}


def check_attention(
    model: BuiltModel, index: int, reached: Scores | None, shape: TransformersShape
) -> None:
    """Checks that a layer calls attention, with the window that its mask would have."""
    name = type(model.layers[index]).__name__
    if reached is None:
        raise InputError(
            f"{name} of transformers calls no attention that this package could compute; choose "
            "another model"
        )
    window = windows_of_layers(model.whole.config)[index]
    if reached.window != window:
        raise InputError(
            f"{name} of transformers has a window of {window} tokens in its mask, but calls "
            f"attention with one of {reached.window}; choose another model"
        )
    if reached.cap is not None and not shape.slices_obstacle:
        raise InputError(
            f"{name} of transformers has a soft cap of {reached.cap}, which its settings do not "
            "name (attn_logit_softcapping), so that plans would have slices; choose another model"
        )


def _check_weights(model: BuiltModel, shape: TransformersShape) -> None:
    built: dict[str, tuple[int, ...]] = {}
    differing = []
    prefix = f"{model.whole.base_model_prefix}.{model.layers_name}."
    for name, weight in model.whole.named_parameters():
        pattern = _in_any_layer(name, prefix)
        if built.setdefault(pattern, tuple(weight.shape)) != tuple(weight.shape):
            differing.append(name)
    stored = {name: tuple(size) for name, size in shape.tensors.items()}
    held = {_in_any_layer(name, prefix) for name, _ in model.whole.named_buffers()}
    if saved := sorted(held & stored.keys() - built.keys()):
        raise InputError(
            f"{type(model.whole).__name__} of transformers has numbers in its files that are not "
            f"weights (buffers): {', '.join(saved)}, which is not supported; choose another model"
        )
    differing += [n for n in built.keys() | stored.keys() if built.get(n) != stored.get(n)]
    if differing:
        raise InputError(
            f"{type(model.whole).__name__} of transformers has other weights than the files of the "
            f"model: {', '.join(sorted(set(differing)))}"
        )


def _in_any_layer(name: str, prefix: str) -> str:
    """Name of a weight with `NUMBER` in place of its layer's number, as in `tensors`."""
    if not name.startswith(prefix):
        return name
    return f"{prefix}{NUMBER}.{name.removeprefix(prefix).partition('.')[2]}"


def materialize(model: BuiltModel) -> None:
    """Gives weights memory, on the device of `torch.empty`, and adapters to layers' linear maps.

    The maps become maps of this package, which compute the same.
    """
    real: dict[nn.Parameter, nn.Parameter] = {}
    like = torch.empty(0)
    for module in list(model.whole.modules()):
        for name, child in list(module.named_children()):
            if isinstance(child, nn.Linear) and child is not model.whole.lm_head:
                has_bias = child.bias is not None
                ours = ColumnLinear(child.in_features, child.out_features, ONE_SHARD, bias=has_bias)
                setattr(module, name, ours)
        for name, weight in list(module._parameters.items()):
            if weight is None or (weight.device == like.device and not weight.is_meta):
                continue
            if weight not in real:
                values = torch.empty(weight.shape) if weight.is_meta else weight.to(like.device)
                real[weight] = nn.Parameter(values.detach())
            module._parameters[name] = real[weight]
        for name, values in list(module._buffers.items()):
            if values is not None:
                module._buffers[name] = values.to(like.device)


class KeepFloat64(TorchFunctionMode):
    """Mode in which conversions to float32 give float64: no rounding on the way."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func is Tensor.float:
            return args[0].double()
        args = [torch.float64 if each is torch.float32 else each for each in args]
        kwargs = {
            name: torch.float64 if value is torch.float32 else value
            for name, value in (kwargs or {}).items()
        }
        return func(*args, **kwargs)


class LayerCall:
    """Stand-in for a layer in a decoder's list: calls a function, and has the layer's settings."""

    def __init__(self, layer: nn.Module, call: Callable[..., Tensor], returns_tuples: bool) -> None:
        self._layer, self._call, self._returns_tuples = layer, call, returns_tuples

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_"):  # before it is set, as in a copy
            raise AttributeError(name)
        return getattr(self._layer, name)

    def __call__(self, hidden: Tensor, *args: Any, **kwargs: Any) -> Any:
        output = self._call(hidden, *args, **kwargs)
        return (output, None) if self._returns_tuples else output


def head_alone(model: BuiltModel) -> Any:
    """The model without its decoder: its inputs are hidden states, and it computes logits."""
    from transformers.modeling_outputs import MoeModelOutputWithPast

    class Given(nn.Module):
        """Decoder that computes nothing."""

        def forward(self, *_: None, inputs_embeds: Tensor, **__: Any) -> Any:
            return MoeModelOutputWithPast(last_hidden_state=inputs_embeds)

    alone = copy.copy(model.whole)
    modules = {model.whole.base_model_prefix: Given(), "lm_head": model.whole.lm_head}
    alone.__dict__["_modules"] = modules
    return alone


def is_plain(alone: Any) -> bool:
    """Whether a head's logits come straight from its linear map, neither scaled nor capped."""
    probe = copy.copy(alone)
    probe.__dict__["_modules"] = {**alone._modules, "lm_head": nn.Identity()}
    values = torch.linspace(-100, 100, 9).view(1, 1, -1)
    with torch.no_grad():
        found = probe(inputs_embeds=values).logits
    return torch.equal(found, values)
