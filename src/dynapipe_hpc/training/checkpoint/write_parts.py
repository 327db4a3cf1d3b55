"""Writing of the parts of a checkpoint that a rank holds."""

import os
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from dynapipe_hpc.data.atomic_write import writing
from dynapipe_hpc.training.checkpoint.files import new_checksum
from dynapipe_hpc.training.checkpoint.part_files import data_path, write_index
from dynapipe_hpc.training.checkpoint.parts import StatePart


def write_parts(folder: Path, rank: int, parts: Iterable[StatePart]) -> str:
    """Writes a rank's numbers and their index into a folder; may be called on any thread.

    Parts are taken one after the other, so that an iterator need not hold all of them. The checksum
    of a part is computed while it is written, as it takes about as long.

    Raises:
        RunError: The file system refuses, as when the disk is full.
    """
    of_data, start = new_checksum(), 0
    tensors: dict[str, Any] = {}
    path = data_path(folder, rank)
    with ThreadPoolExecutor(1, "checksum") as checksums, writing(path), path.open("wb") as file:
        for part in parts:
            data = _bytes_of(part.values)
            summing = checksums.submit(of_data.update, data)
            file.write(data)
            summing.result()
            tensor = tensors.setdefault(part.name, _without_blocks(part))
            tensor["blocks"].append([list(part.offsets), list(part.values.shape), start])
            start += len(data)
        file.flush()
        os.fsync(file.fileno())
    return write_index(folder, rank, tensors, of_data.hexdigest())


def _bytes_of(values: Tensor) -> memoryview:
    return values.contiguous().view(-1).view(torch.uint8).numpy().data


def _without_blocks(part: StatePart) -> dict[str, Any]:
    dtype = str(part.values.dtype).removeprefix("torch.")
    return {"dtype": dtype, "shape": list(part.tensor_shape), "blocks": []}
