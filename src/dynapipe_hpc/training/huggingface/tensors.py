"""Tensors of a Hugging Face folder: its files, and the weights of a model that they make up."""

from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from dynapipe_hpc.architecture.model_shape import ModelShape
from dynapipe_hpc.data.errors import InputError, quoted
from dynapipe_hpc.data.input_file import why_unreadable
from dynapipe_hpc.training.huggingface.mapping import DTYPES, ModelTypeMapping, TensorMap
from dynapipe_hpc.training.small_files import read_object

SINGLE = "model.safetensors"
INDEX = "model.safetensors.index.json"


class SafetensorsEntry(NamedTuple):
    """Tensor in a safetensors file, by its name and type in the file."""

    file: Path
    name: str
    dtype: str
    shape: tuple[int, ...]


def weight_files(folder: Path) -> list[Path]:
    """The safetensors files of a folder that `transformers` would read."""
    single, index = folder / SINGLE, folder / INDEX
    if not index.exists():
        if single.exists():
            return [single]
        raise _missing_error(folder)
    shards = _shards(index)
    if single in shards or not single.exists():
        return shards
    if all(shard.exists() for shard in shards):
        raise InputError(
            f"{folder}: has its weights twice, in {SINGLE} and in the files that {INDEX} names "
            f"({shards[0].name}, ...), and nothing tells which are newer; remove either {SINGLE}, "
            f"or {INDEX} with its files"
        )
    # The index is a leftover of an earlier save, whose other files are gone.
    return [single]


def stored_tensors(folder: Path) -> dict[str, SafetensorsEntry]:
    """Tensors of a folder, by name; their numbers are not read."""
    from safetensors import SafetensorError, safe_open

    tensors: dict[str, SafetensorsEntry] = {}
    for file in weight_files(folder):
        if reason := why_unreadable(file):
            raise InputError(f"{file}: cannot be read: {reason}")
        try:
            with safe_open(str(file), framework="numpy") as opened:
                for name in opened.keys():  # noqa: SIM118 - it is not a dictionary
                    tensor = opened.get_slice(name)
                    if name in tensors:
                        raise InputError(f"{file}: {name} is in {tensors[name].file.name}, too")
                    shape = tuple(tensor.get_shape())
                    tensors[name] = SafetensorsEntry(file, name, tensor.get_dtype(), shape)
        except (SafetensorError, OSError) as error:
            raise InputError(
                f"{file}: is not a complete safetensors file ({file.stat().st_size:,} bytes: "
                f"{error}); fetch it again"
            ) from None
    return tensors


def has_weights(folder: Path) -> bool:
    """Whether a folder has files of weights; plans do not need them."""
    return any((folder / name).exists() for name in (SINGLE, INDEX))


def _shards(index: Path) -> list[Path]:
    names = read_object(index).get("weight_map")
    if not isinstance(names, dict) or not names:
        raise InputError(f"{index}: has no 'weight_map' of tensors to files")
    for name in names.values():
        if not isinstance(name, str) or Path(name).name != name:
            raise InputError(f"{index}: {quoted(name)} is not the name of a file there")
    return [index.parent / name for name in dict.fromkeys(names.values())]


def _missing_error(folder: Path) -> InputError:
    if pickled := sorted([*folder.glob("*.bin"), *folder.glob("*.pt"), *folder.glob("*.pth")]):
        return InputError(
            f"{folder}: has its weights in {pickled[0].name} only, a pickle file, which is not "
            "read, as it may run any program; if you trust it, convert it with transformers: "
            "AutoModel...from_pretrained(FOLDER).save_pretrained(NEW_FOLDER)"
        )
    return InputError(f"{folder}: has neither {SINGLE} nor {INDEX}; name a folder with weights")


_WRAPPERS = {
    "_orig_mod.": (
        "as in a compiled model; save the model inside: model._orig_mod.save_pretrained(NEW_FOLDER)"
    ),
    "base_model.model.": (
        "as in a model with adapters of peft; merge them first: "
        "model.merge_and_unload().save_pretrained(NEW_FOLDER)"
    ),
    "module.": (
        "as in a model in DataParallel or DistributedDataParallel; save the model inside: "
        "model.module.save_pretrained(NEW_FOLDER)"
    ),
    "v_head.": (
        "as in a value head, which trl puts on a model; save the model without it: "
        "model.pretrained_model.save_pretrained(NEW_FOLDER)"
    ),
}
"""Causes and remedies, by prefix of tensor names."""


def _check_names(folder: Path, names: Collection[str]) -> None:
    """Refuses tensors of a model that was saved inside another object; the error names it."""
    for prefix, remedy in _WRAPPERS.items():
        if wrapped := [name for name in names if name.startswith(prefix)]:
            raise InputError(
                f"{folder}: {len(wrapped)} of {len(names)} names of tensors begin with "
                f"'{prefix}' ({wrapped[0]}), {remedy}"
            )


@dataclass(frozen=True, slots=True)
class ModelTensors:
    """Tensors of a folder that holds every weight of a model in its shape."""

    folder: Path
    maps: Mapping[str, TensorMap]
    tensors: Mapping[str, SafetensorsEntry]
    copies: Mapping[str, str]  # names of originals by names of copies


def open_tensors(folder: Path, mapping: ModelTypeMapping, shape: ModelShape) -> ModelTensors:
    """The tensors of a folder, if they match the weights of a model."""
    stored = stored_tensors(folder)
    _check_names(folder, stored)
    tensors = _with_any_copy(_with_prefix(stored, mapping), mapping.copies(shape))
    maps = {each.name: each for each in mapping.tensors(shape)}
    expected_shapes = {n: size for each in maps.values() for n, size in each.stored_shapes.items()}
    copies = {copy: name for copy, name in mapping.copies(shape).items() if copy in tensors}
    expected_shapes |= {copy: expected_shapes[name] for copy, name in copies.items()}
    mismatches = [
        *_listed("lacks", expected_shapes.keys() - tensors.keys()),
        *_listed(
            f"has, though no {mapping.model_type} of these sizes has them,",
            {
                n
                for n in tensors.keys() - expected_shapes.keys()
                if not mapping.ignored.fullmatch(n)
            },
        ),
        *_misshapen({n: tensors[n] for n in expected_shapes if n in tensors}, expected_shapes),
    ]
    if mismatches:
        raise InputError(f"{folder}: {'; '.join(mismatches)}")
    return ModelTensors(folder, maps, tensors, copies)


def _with_prefix(
    tensors: Mapping[str, SafetensorsEntry], mapping: ModelTypeMapping
) -> dict[str, SafetensorsEntry]:
    """Tensors by their names in a model with a head; files without a head leave out a prefix."""
    if any(name.startswith(mapping.prefix) for name in tensors):
        return dict(tensors)
    return {n if n.startswith("lm_head.") else mapping.prefix + n: t for n, t in tensors.items()}


def _with_any_copy(
    tensors: dict[str, SafetensorsEntry], copies: Mapping[str, str]
) -> dict[str, SafetensorsEntry]:
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
