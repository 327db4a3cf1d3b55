"""Files in a folder that hold its weights, and the tensors in them."""

from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

from dynapipe_hpc.data.errors import InputError, quoted
from dynapipe_hpc.data.input_file import why_unreadable
from dynapipe_hpc.training.small_files import read_object

SINGLE = "model.safetensors"
INDEX = "model.safetensors.index.json"
DTYPES: Mapping[str, str] = {
    "F64": "float64",
    "F32": "float32",
    "F16": "float16",
    "BF16": "bfloat16",
}
"""Types of numbers that are read, as safetensors and torch call them."""


class SafetensorsEntry(NamedTuple):
    """Tensor in a safetensors file, by the name and type that it has there."""

    file: Path
    name: str
    dtype: str
    shape: tuple[int, ...]


def weight_files(folder: Path) -> list[Path]:
    """The safetensors files of a folder, those that `transformers` would read."""
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
    # The index is left of an earlier save, whose other files are gone.
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
    """Whether there are files of weights in a folder; plans need none."""
    return any((folder / name).exists() for name in (SINGLE, INDEX))


def _shards(index: Path) -> list[Path]:
    names = read_object(index).get("weight_map")
    if not isinstance(names, dict) or not names:
        raise InputError(f"{index}: has no 'weight_map' of tensors to files")
    for name in names.values():
        if not isinstance(name, str) or Path(name).name != name:
            raise InputError(f"{index}: {quoted(name)} is not the name of a file beside it")
    return [index.parent / name for name in dict.fromkeys(names.values())]


def _missing_error(folder: Path) -> InputError:
    if pickled := sorted([*folder.glob("*.bin"), *folder.glob("*.pt"), *folder.glob("*.pth")]):
        return InputError(
            f"{folder}: has its weights in {pickled[0].name} only, a pickle file, which is not "
            "read, as it may run any program; if you trust it, convert it with transformers: "
            "AutoModel...from_pretrained(FOLDER).save_pretrained(NEW_FOLDER)"
        )
    return InputError(f"{folder}: has neither {SINGLE} nor {INDEX}; name a folder with weights")
