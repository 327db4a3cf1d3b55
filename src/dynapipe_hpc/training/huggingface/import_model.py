"""Import of a Hugging Face model: its weights as a checkpoint after no iterations."""

from collections.abc import Iterator
from pathlib import Path

import torch

from dynapipe_hpc.data.atomic_write import new_folder
from dynapipe_hpc.data.errors import InputError
from dynapipe_hpc.training.checkpoint.folder import Description, check_room
from dynapipe_hpc.training.checkpoint.parts import StatePart, write_parts
from dynapipe_hpc.training.counters import Counters
from dynapipe_hpc.training.huggingface.origin import FACT, Origin, find_origin
from dynapipe_hpc.training.huggingface.read_weights import check_copies, read_rows, row_blocks
from dynapipe_hpc.training.huggingface.tensors import ModelTensors, open_tensors
from dynapipe_hpc.training.small_files import CARRIED, copy_small_files

NOTHING_DONE = Counters(n_steps=0, n_updates=0, loss_scale=1.0, n_scaled_steps=0, n_skipped_steps=0)


def import_model(source: Path, output: Path) -> Origin:
    """Writes the weights of a Hugging Face folder as a checkpoint, one tensor at a time.

    Weights keep the type that they have there, so that nothing is rounded.
    """
    origin = find_origin(source)
    if origin.description is not None:
        raise InputError(f"{source}: is no Hugging Face model, but has checkpoints already")
    tensors = open_tensors(source, origin.mapping, origin.shape)
    check_copies(tensors)
    facts = {f"{FACT}{k}": v for k, v in origin.shape.sizes.items()}
    with new_folder(output) as partial:
        files = {each.file for each in tensors.tensors.values()}
        check_room(partial, sum(file.stat().st_size for file in files))
        copy_small_files(source, partial / CARRIED)
        checksum = write_parts(partial, 0, _parts(tensors))
        Description(0, NOTHING_DONE, facts, (checksum,)).write(partial)
    return origin


def _parts(tensors: ModelTensors) -> Iterator[StatePart]:
    for name, tensor_map in tensors.maps.items():
        shape, others = torch.Size(tensor_map.shape), [0] * (len(tensor_map.shape) - 1)
        if tensor_map.is_stack:
            for i in range(shape[0]):
                values = read_rows(tensors, name, i * shape[1], (i + 1) * shape[1])
                offsets = torch.Size([i, *others])
                yield StatePart(f"weight/{name}", shape, offsets, values.unsqueeze(0))
            continue
        for start, stop in row_blocks(tensor_map, 0, tensor_map.shape[0]):
            values = read_rows(tensors, name, start, stop)
            yield StatePart(f"weight/{name}", shape, torch.Size([start, *others]), values)
