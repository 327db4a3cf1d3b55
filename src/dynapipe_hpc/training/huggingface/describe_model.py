"""Description of a model on disk: the families that can train it, or why none can."""

import json
from collections.abc import Iterator
from importlib.metadata import version
from pathlib import Path

from dynapipe_hpc.architecture.model_shape import ModelShape
from dynapipe_hpc.architecture.rope_scaling import short_tokens
from dynapipe_hpc.architecture.transformers import TransformersShape, windows_of_layers
from dynapipe_hpc.data.errors import InputError
from dynapipe_hpc.models.family import family_of
from dynapipe_hpc.training.huggingface.origin import Origin, find_origin
from dynapipe_hpc.training.huggingface.tensors import stored_tensors
from dynapipe_hpc.training.huggingface.transformers import FAMILY


def describe_model(path: Path) -> str:
    """Describes a Hugging Face folder, a checkpoint or a run.

    Layers of `transformers` are built, one of each kind, without their weights.
    """
    origins: list[Origin] = []
    refusals: list[str] = []
    for family in (None, FAMILY):
        try:
            origin = find_origin(path, family)
            if origin.description is None:
                stored_tensors(origin.folder)  # refuses files that are not complete
                if isinstance(origin.shape, TransformersShape):
                    _check_layers(origin.shape)
        except InputError as error:
            if (text := str(error)) not in refusals:
                refusals.append(text)
            continue
        if origin.shape.family not in [each.shape.family for each in origins]:
            origins.append(origin)
    if not origins:
        raise InputError("; ".join(refusals))
    lines = [f"{origins[0]}: {_size(origins[0].shape)}"]
    for origin in origins:
        lines += [f'family = "{origin.shape.family}": {text}' for text in _details(origin)]
    return "\n".join([*lines, *(f"another family refuses it: {text}" for text in refusals)])


def _size(shape: ModelShape) -> str:
    weights, held = shape.weights(), shape.held(range(shape.n_all_layers), first=True, last=True)
    n = sum(weights[kind].n_numbers * count for kind, count in held.items() if kind in weights)
    n -= sum(weights[first].n_first * len(others) for first, *others in shape.tied.values())
    return f"{n:,} weights, {shape.layers_text} layers"


def _details(origin: Origin) -> Iterator[str]:
    if not isinstance(origin.shape, TransformersShape):
        yield "layers of this package"
        return
    yield f"layers of transformers {version('transformers')}"
    settings = json.loads(origin.shape.settings)
    windows = windows_of_layers(origin.shape.config)
    for window in {n for n in windows if n}:
        n_sliding = windows.count(window)
        yield f"windows of {window:,} tokens in {n_sliding} of {len(windows)} layers"
    if n := short_tokens(origin.shape.config.to_dict()):
        yield f"rotary positions with short factors (longrope): rows of up to {n:,} tokens"
    if cap := getattr(origin.shape.config, "attn_logit_softcapping", None):
        yield f"scores with a soft cap of {cap:g}, all kept for backward"
    dropped = [
        name
        for name, value in settings.items()
        if isinstance(value, float) and value and ("dropout" in name or "jitter" in name)
    ]
    if dropped:
        yield f"no dropout, although config.json has {', '.join(dropped)}"


def _check_layers(shape: TransformersShape) -> None:
    """Builds one layer for each window; building refuses what is not supported."""
    windows = windows_of_layers(shape.config)
    for i in {windows.index(window) for window in windows}:
        family_of(shape)(shape, range(i, i + 1), first=False, last=False)
