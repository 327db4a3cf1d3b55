"""Choice of the files in a folder that hold its weights."""

import json
from pathlib import Path
from typing import Any

from dynapipe_hpc.data.errors import InputError, quoted
from dynapipe_hpc.data.input_file import open_input
from dynapipe_hpc.training.small_files import read_object

SINGLE = "model.safetensors"
INDEX = "model.safetensors.index.json"
MAX_HEADER_BYTES = 10**8
"""Size of the longest header that the format allows."""


def weight_files(folder: Path) -> list[Path]:
    """The safetensors files of a folder, those that `transformers` would read.

    Raises:
        InputError: There are none, or two sets of weights that are both complete.
    """
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


def tensor_names(folder: Path) -> frozenset[str]:
    """Names of the tensors in a folder, read without a library; none if its weights are not there.

    Files that are damaged have no names here; to read their tensors says why.

    Raises:
        InputError: There are two sets of weights, or the index is damaged.
    """
    if not any((folder / name).exists() for name in (SINGLE, INDEX)):
        return frozenset()
    return frozenset(name for file in weight_files(folder) for name in _header(file))


def tensor_shapes(folder: Path) -> dict[str, tuple[int, ...]]:
    """Shapes of the tensors in a folder by name, read without a library.

    Raises:
        InputError: There are no weights, or a file is damaged.
    """
    shapes: dict[str, tuple[int, ...]] = {}
    for file in weight_files(folder):
        header = _header(file)
        if not header:
            raise _damaged_error(file)
        for name, entry in header.items():
            shape = entry.get("shape") if isinstance(entry, dict) else None
            if not isinstance(shape, list) or not all(type(n) is int and n >= 0 for n in shape):
                raise InputError(f"{file}: {name} has no shape in the header; fetch the file again")
            shapes[name] = tuple(shape)
    return shapes


def check_sizes(folder: Path) -> None:
    """Refuses files of tensors that are shorter or longer than their headers say.

    Raises:
        InputError: There are no weights, or a file is damaged or not complete.
    """
    for file in weight_files(folder):
        header = _header(file)
        if not header:
            raise _damaged_error(file)
        with open_input(file) as opened:
            start = 8 + int.from_bytes(opened.read(8), "little")
        n_bytes, needed = file.stat().st_size, start + max(map(_end, header.values()))
        if n_bytes != needed:
            raise InputError(
                f"{file}: has {n_bytes:,} bytes, but {needed:,} by its header; fetch it again"
            )


def _end(entry: object) -> int:
    """End of a tensor by its entry in the header; 0 if that has none."""
    match entry:
        case {"data_offsets": [_, int() as end]}:
            return end
        case _:
            return 0


def _damaged_error(file: Path) -> InputError:
    return InputError(f"{file}: is not a complete safetensors file; fetch it again")


def _header(file: Path) -> dict[str, Any]:
    """Tensors in the header of a safetensors file: its size in 8 bytes, then JSON."""
    try:
        with open_input(file) as opened:
            n_bytes = int.from_bytes(opened.read(8), "little")
            header = json.loads(opened.read(n_bytes)) if n_bytes <= MAX_HEADER_BYTES else {}
    except (OSError, ValueError, RecursionError):
        return {}
    if not isinstance(header, dict):
        return {}
    return {name: entry for name, entry in header.items() if name != "__metadata__"}


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
