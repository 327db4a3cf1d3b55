"""Reading of the weights of a model on disk, piece by piece, into parts of a model in memory."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import reduce
from math import prod

import torch
from safetensors import safe_open
from torch import Tensor

from dynapipe_hpc.architecture.model_shape import ModelShape
from dynapipe_hpc.data.errors import InputError
from dynapipe_hpc.models.family import StageOfFamily, family_of
from dynapipe_hpc.training.checkpoint.part_files import check_parts
from dynapipe_hpc.training.checkpoint.parts import CheckpointReader, StatePart, whole_parts
from dynapipe_hpc.training.huggingface.mapping import DTYPES, TensorMap
from dynapipe_hpc.training.huggingface.origin import Origin
from dynapipe_hpc.training.huggingface.tensors import ModelTensors, SafetensorsEntry, open_tensors

WEIGHT, ADAPTER = "weight/", ".adapters."
ROWS_BYTES = 1 << 24
"""Maximum size, in float32, of rows of a large tensor in memory at once; they stay on the heap."""


@dataclass(frozen=True, slots=True)
class OriginWeights:
    """Weights of a model on disk, whose index has been read."""

    source: ModelTensors | CheckpointReader

    def has(self, name: str) -> bool:
        """Whether the model on disk holds a part of a state, by its kind and name."""
        if isinstance(self.source, CheckpointReader):
            return self.source.has(name)
        return name.removeprefix(WEIGHT) in self.source.maps

    def read(self, parts: Sequence[StatePart]) -> None:
        """Overwrites parts with values of the model on disk; adapters only if it has adapters."""
        held = [part for part in parts if ADAPTER not in part.name or self.has(part.name)]
        if isinstance(self.source, CheckpointReader):
            # Imports keep the types of their files.
            self.source.fill(held, converting=True)
            return
        for part in held:
            read_part(self.source, replace(part, name=part.name.removeprefix(WEIGHT)))


def open_weights(
    origin: Origin, shape: ModelShape, *, compares_copies: bool = True
) -> OriginWeights:
    """Opens the weights of a model on disk; a checkpoint must have been verified (`check_part`).

    `compares_copies`: Whether duplicate tensors of a Hugging Face folder are read and compared.
    """
    if origin.description is not None:
        checksums = origin.description.part_checksums
        return OriginWeights(CheckpointReader(origin.folder, len(checksums)))
    tensors = open_tensors(origin.folder, origin.mapping, shape)
    if compares_copies:
        check_copies(tensors)
    return OriginWeights(tensors)


def load_model(origin: Origin) -> StageOfFamily:
    """The complete model on one stage, in float32."""
    shape = origin.shape
    if origin.description is not None:
        check_parts(origin.folder, origin.description.part_checksums)
    weights = open_weights(origin, shape)
    stage = family_of(shape)(shape, range(shape.n_all_layers), first=True, last=True)
    weights.read(whole_parts(stage))
    return stage


def read_part(tensors: ModelTensors, part: StatePart) -> None:
    """Overwrites a block of a weight with values from the tensors in a folder."""
    tensor_map = tensors.maps[part.name]
    if not tensor_map.is_stack:
        _read_block(tensors, part, tensor_map)
        return
    (first, row, *others), n_rows = part.offsets, tensor_map.shape[1]
    for i, values in enumerate(part.values, first):
        offsets = torch.Size([i * n_rows + row, *others])
        _read_block(tensors, replace(part, offsets=offsets, values=values), tensor_map.as_matrix)


def _read_block(tensors: ModelTensors, part: StatePart, tensor_map: TensorMap) -> None:
    (start, *others), (n_rows, *sizes) = part.offsets, part.values.shape
    rest = [slice(o, o + n) for o, n in zip(others, sizes, strict=True)]
    for first, stop in row_blocks(tensor_map, start, start + n_rows):
        for piece in tensor_map.pieces(first, stop):
            index = [slice(piece.start, piece.start + piece.n_rows), *rest]
            values = _read(
                tensors.tensors[piece.source], index[::-1] if tensor_map.transposed else index
            )
            target = part.values.narrow(0, piece.at - start, piece.n_rows)
            target.copy_(values.T if tensor_map.transposed else values)


def read_rows(tensors: ModelTensors, name: str, start: int, stop: int) -> Tensor:
    """Rows `start` to `stop` of an unsplit weight, in a type that its tensors' types fit into."""
    tensor_map = tensors.maps[name].as_matrix
    stored = {DTYPES[tensors.tensors[source].dtype] for source in tensor_map.sources}
    dtype = reduce(torch.promote_types, (getattr(torch, each) for each in stored))
    pieces = list(tensor_map.pieces(start, stop))
    if len(pieces) == 1 and not tensor_map.transposed:
        (piece,) = pieces
        rows = slice(piece.start, piece.start + piece.n_rows)
        return _read(tensors.tensors[piece.source], [rows]).to(dtype)
    values = torch.empty((stop - start, *tensor_map.shape[1:]), dtype=dtype)
    offsets = torch.Size([start] + [0] * (values.ndim - 1))
    _read_block(tensors, StatePart(name, torch.Size(tensor_map.shape), offsets, values), tensor_map)
    return values


def row_blocks(tensor_map: TensorMap, start: int, stop: int) -> Iterator[tuple[int, int]]:
    """Starts and ends of blocks of rows that are read at once; a transposed weight is one block."""
    step = max(1, ROWS_BYTES // (4 * prod(tensor_map.shape[1:])))
    if tensor_map.transposed:
        step = stop - start
    for first in range(start, stop, step):
        yield first, min(first + step, stop)


def check_copies(tensors: ModelTensors) -> None:
    """Compares tensors that are in the folder twice."""
    for copy, name in tensors.copies.items():
        one, other = tensors.tensors[copy], tensors.tensors[name]
        n_rows = max(1, ROWS_BYTES // (4 * prod(one.shape[1:])))
        for start in range(0, one.shape[0], n_rows):
            index = [slice(start, start + n_rows)]
            if not torch.equal(_read(one, index), _read(other, index)):
                raise InputError(
                    f"{tensors.folder}: {copy} differs from {name}, although config.json ties "
                    "them; if the head has weights of its own, set tie_word_embeddings to false "
                    "there"
                )


def _read(tensor: SafetensorsEntry, index: Sequence[slice]) -> Tensor:
    # Opened again each time: pages read from a mapped file would count as memory in use.
    with safe_open(str(tensor.file), framework="pt") as file:
        values: Tensor = file.get_slice(tensor.name)[tuple(index)]
    if not torch.stack(values.aminmax()).isfinite().all():  # a NaN is both least and largest
        raise InputError(
            f"{tensor.file}: {tensor.name} has numbers that are NaN or infinite, so that no loss "
            "would be a number; take the model as it was before its training diverged"
        )
    return values
