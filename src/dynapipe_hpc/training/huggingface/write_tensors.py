"""Writing of weights as safetensors files, as `transformers` shares them out and names them."""

import json
import os
from collections.abc import Callable, Iterable, Mapping
from math import prod
from pathlib import Path

import torch
from safetensors import SafetensorError
from safetensors.torch import save_file
from torch import Tensor

from dynapipe_hpc.data.atomic_write import writing
from dynapipe_hpc.data.errors import RunError
from dynapipe_hpc.training.huggingface.read_weights import row_blocks
from dynapipe_hpc.training.huggingface.tensor_map import Piece, TensorMap
from dynapipe_hpc.training.huggingface.weight_files import INDEX, SINGLE

MAX_BYTES = 10**9
"""Most bytes of tensors in a file, all of which are in memory while it is written."""

ReadRows = Callable[[str, int, int], Tensor]
"""Function that returns rows of an unsplit weight: of a name, from a row, up to a row."""


def write_tensors(
    folder: Path,
    maps: Iterable[TensorMap],
    read: ReadRows,
    dtype: torch.dtype,
    *,
    most_bytes: int = MAX_BYTES,
) -> None:
    """Writes all weights of a model into one file, or into several with an index.

    Args:
        folder: Folder of the files.
        maps: Weights, and the tensors that they become.
        read: Reader of weights.
        dtype: Type of the numbers that are written.
        most_bytes: Most bytes of the tensors in one file; a larger tensor is alone.
    """
    files: list[dict[str, tuple[TensorMap, Piece]]] = [{}]
    held = total = 0
    for tensor_map in maps:
        for piece in tensor_map.pieces(0, sum(tensor_map.sources.values())):
            n_bytes = prod(tensor_map.stored_shapes[piece.source]) * dtype.itemsize
            if files[-1] and held + n_bytes > most_bytes:
                files.append({})
                held = 0
            files[-1][piece.source] = (tensor_map, piece)
            held += n_bytes
            total += n_bytes
    names = [f"model-{n:05d}-of-{len(files):05d}.safetensors" for n in range(1, len(files) + 1)]
    for name, stored in zip(names if len(files) > 1 else [SINGLE], files, strict=True):
        save_tensors(folder / name, {k: _read(*at, read, dtype) for k, at in stored.items()})
    if len(files) > 1:
        file_of = {source: name for name, file in zip(names, files, strict=True) for source in file}
        index = {"metadata": {"total_size": total}, "weight_map": file_of}
        with writing(folder / INDEX):
            (folder / INDEX).write_text(f"{json.dumps(index, indent=2, sort_keys=True)}\n")


def save_tensors(path: Path, tensors: Mapping[str, Tensor]) -> None:
    """Writes tensors as a safetensors file, and waits until it is on disk."""
    with writing(path):
        try:
            save_file(dict(tensors), path, metadata={"format": "pt"})
        except SafetensorError as error:
            raise RunError(f"{path}: cannot be written: {error}") from error
        with path.open("rb") as file:
            os.fsync(file.fileno())


def _read(tensor_map: TensorMap, piece: Piece, read: ReadRows, dtype: torch.dtype) -> Tensor:
    """A tensor, filled some rows at a time unless it is stored as columns."""
    values = torch.empty(tensor_map.stored_shapes[piece.source], dtype=dtype)
    rows = values.T if tensor_map.transposed else values
    name, start = tensor_map.name, piece.at
    for first, end in row_blocks(tensor_map.as_matrix, start, start + piece.n_rows):
        if tensor_map.is_stack:
            i, row = divmod(first, tensor_map.shape[1])
            block = read(name, i, i + 1)[0, row : row + end - first]
        else:
            block = read(name, first, end)
        rows[first - start : end - start] = block
    return values
