"""Writing of weights as safetensors files, streamed.

Source:
    The format, https://huggingface.co/docs/safetensors: the length of a header, the header (JSON),
    and the numbers of all tensors. The library writes only tensors that are all in memory.
"""

import json
import os
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from math import prod
from pathlib import Path

import torch
from torch import Tensor

from dynapipe_hpc.data.atomic_write import writing
from dynapipe_hpc.training.huggingface.dtypes import DTYPES
from dynapipe_hpc.training.huggingface.read_rows import row_blocks
from dynapipe_hpc.training.huggingface.tensor_map import TensorMap
from dynapipe_hpc.training.huggingface.weight_files import INDEX, SINGLE

MAX_BYTES = 5 * 10**9
"""Size of tensors from which on they are shared out over several files."""
ALIGNMENT = 8

ReadRows = Callable[[str, int, int], Tensor]
"""Function that returns rows of an unsplit weight: of a name, from a row, up to a row."""


@dataclass(frozen=True, slots=True)
class _Output:
    """A tensor to write.

    Attributes:
        shape: Shape of the tensor.
        tensor_map: Map of the weight that holds it.
        start: Index of its first row in the weight.
        n_rows: Number of its rows in the weight.
    """

    name: str
    shape: tuple[int, ...]
    tensor_map: TensorMap
    start: int
    n_rows: int


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

    Raises:
        RunError: The file system refuses, as when the disk is full.
    """
    files = list(_shared_out([each for m in maps for each in _outputs(m)], dtype, most_bytes))
    if len(files) == 1:
        _write_file(folder / SINGLE, files[0], read, dtype)
        return
    file_of: dict[str, str] = {}
    for number, outputs in enumerate(files, 1):
        name = f"model-{number:05d}-of-{len(files):05d}.safetensors"
        _write_file(folder / name, outputs, read, dtype)
        file_of |= {each.name: name for each in outputs}
    total = sum(_n_bytes(each, dtype) for outputs in files for each in outputs)
    index = {"metadata": {"total_size": total}, "weight_map": file_of}
    with writing(folder / INDEX):
        (folder / INDEX).write_text(f"{json.dumps(index, indent=2)}\n")


def _outputs(tensor_map: TensorMap) -> Iterator[_Output]:
    start = 0
    for name, n_rows in tensor_map.sources.items():
        yield _Output(name, tensor_map.stored_shapes[name], tensor_map, start, n_rows)
        start += n_rows


def _shared_out(
    outputs: Iterable[_Output], dtype: torch.dtype, most_bytes: int
) -> Iterator[list[_Output]]:
    held: list[_Output] = []
    for each in outputs:
        if held and sum(_n_bytes(one, dtype) for one in (*held, each)) > most_bytes:
            yield held
            held = []
        held.append(each)
    yield held


def _write_file(path: Path, outputs: Iterable[_Output], read: ReadRows, dtype: torch.dtype) -> None:
    with writing(path), path.open("wb") as file:
        file.write(_header(outputs, dtype))
        for each in outputs:
            for values in _blocks(each, read):
                file.write(values.to(dtype).contiguous().view(torch.uint8).numpy().data)
        file.flush()
        os.fsync(file.fileno())


def _header(outputs: Iterable[_Output], dtype: torch.dtype) -> bytes:
    kind = {name: short for short, name in DTYPES.items()}[str(dtype).removeprefix("torch.")]
    fields: dict[str, object] = {"__metadata__": {"format": "pt"}}
    start = 0
    for each in outputs:
        stop = start + _n_bytes(each, dtype)
        fields[each.name] = {"dtype": kind, "shape": each.shape, "data_offsets": [start, stop]}
        start = stop
    header = json.dumps(fields, separators=(",", ":")).encode()
    header += b" " * (-len(header) % ALIGNMENT)
    return len(header).to_bytes(8, "little") + header


def _blocks(output: _Output, read: ReadRows) -> Iterator[Tensor]:
    """The numbers of a tensor, some rows at a time unless they are stored as columns."""
    tensor_map = output.tensor_map
    name, start, stop = tensor_map.name, output.start, output.start + output.n_rows
    for first, end in row_blocks(tensor_map.as_matrix, start, stop):
        if tensor_map.is_stack:
            i, row = divmod(first, tensor_map.shape[1])
            values = read(name, i, i + 1)[0, row : row + end - first]
        else:
            values = read(name, first, end)
        yield values.T if tensor_map.transposed else values


def _n_bytes(output: _Output, dtype: torch.dtype) -> int:
    return prod(output.shape) * dtype.itemsize
