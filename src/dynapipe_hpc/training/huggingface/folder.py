"""Folder of a Hugging Face model: its sizes, its tensors and which weights they make."""

from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from dynapipe_hpc.architecture.model_shape import ModelShape
from dynapipe_hpc.data.errors import InputError
from dynapipe_hpc.training.huggingface.model_type_mapping import ModelTypeMapping
from dynapipe_hpc.training.huggingface.tensor_map import TensorMap
from dynapipe_hpc.training.huggingface.weight_files import DTYPES, SafetensorsEntry, stored_tensors

_WRAPPERS = {
    "_orig_mod.": (
        "as of a compiled model; save the model inside: model._orig_mod.save_pretrained(NEW_FOLDER)"
    ),
    "base_model.model.": (
        "as of a model with adapters of peft; merge them first: "
        "model.merge_and_unload().save_pretrained(NEW_FOLDER)"
    ),
    "module.": (
        "as of a model in DataParallel or DistributedDataParallel; save the model inside: "
        "model.module.save_pretrained(NEW_FOLDER)"
    ),
    "v_head.": (
        "as of a value head, which trl puts on a model; save the model without it: "
        "model.pretrained_model.save_pretrained(NEW_FOLDER)"
    ),
}
"""Causes and remedies, by the beginnings of names."""


def _check_names(folder: Path, names: Collection[str]) -> None:
    """Refuses tensors of a model that was saved inside another object, which is named."""
    for prefix, remedy in _WRAPPERS.items():
        if wrapped := [name for name in names if name.startswith(prefix)]:
            raise InputError(
                f"{folder}: {len(wrapped)} of {len(names)} names of tensors begin with "
                f"'{prefix}' ({wrapped[0]}), {remedy}"
            )


@dataclass(frozen=True, slots=True)
class ModelTensors:
    """Tensors of a folder, of which each weight of a model is there with its shape.

    Attributes:
        maps: Weights of the model, by name.
        tensors: Tensors, by the name that the page gives them.
        copies: Tensors that are there twice: the second by the name of the first.
    """

    folder: Path
    maps: Mapping[str, TensorMap]
    tensors: Mapping[str, SafetensorsEntry]
    copies: Mapping[str, str]


def open_tensors(folder: Path, page: ModelTypeMapping, shape: ModelShape) -> ModelTensors:
    """Compares the tensors of a folder with the weights of a model."""
    stored = stored_tensors(folder)
    _check_names(folder, stored)
    tensors = _with_any_copy(_with_prefix(stored, page), page.copies(shape))
    maps = {each.name: each for each in page.tensors(shape)}
    expected_shapes = {n: size for each in maps.values() for n, size in each.stored_shapes.items()}
    copies = {copy: name for copy, name in page.copies(shape).items() if copy in tensors}
    expected_shapes |= {copy: expected_shapes[name] for copy, name in copies.items()}
    mismatches = [
        *_listed("lacks", expected_shapes.keys() - tensors.keys()),
        *_listed(
            f"has, though no {page.model_type} of these sizes has them,",
            {n for n in tensors.keys() - expected_shapes.keys() if not page.ignored.fullmatch(n)},
        ),
        *_misshapen({n: tensors[n] for n in expected_shapes if n in tensors}, expected_shapes),
    ]
    if mismatches:
        raise InputError(f"{folder}: {'; '.join(mismatches)}")
    return ModelTensors(folder, maps, tensors, copies)


def _with_prefix(
    tensors: Mapping[str, SafetensorsEntry], page: ModelTypeMapping
) -> dict[str, SafetensorsEntry]:
    """Tensors by their names in a model with a head, as files without one leave a prefix out."""
    if any(name.startswith(page.prefix) for name in tensors):
        return dict(tensors)
    return {n if n.startswith("lm_head.") else page.prefix + n: t for n, t in tensors.items()}


def _with_any_copy(
    tensors: dict[str, SafetensorsEntry], copies: Mapping[str, str]
) -> dict[str, SafetensorsEntry]:
    """Tensors of which files may hold only a copy, also by the name of the original."""
    for copy, name in copies.items():
        if copy in tensors and name not in tensors:
            tensors[name] = tensors.pop(copy)
    return tensors


def _listed(verb: str, names: set[str]) -> Iterator[str]:
    if names:
        yield f"{verb} {', '.join(sorted(names))}"


def _misshapen(
    tensors: Mapping[str, SafetensorsEntry], expected_shapes: Mapping[str, tuple[int, ...]]
) -> Iterator[str]:
    for name, tensor in tensors.items():
        if tensor.shape != expected_shapes[name]:
            yield f"{name} has the shape {list(tensor.shape)}, not {list(expected_shapes[name])}"
        elif tensor.dtype not in DTYPES:
            yield f"{name} has numbers of type {tensor.dtype}, not {', '.join(DTYPES)}"
