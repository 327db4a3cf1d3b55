"""Parts of a model's state on a rank, named as in the unsplit model: writing and reading them."""

import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from dynapipe_hpc.data.atomic_write import writing
from dynapipe_hpc.models.sharding.shards import WHOLE, Split, splits_of
from dynapipe_hpc.training.checkpoint.folder import DamagedError, new_checksum
from dynapipe_hpc.training.checkpoint.part_files import (
    ITEM_BYTES,
    Box,
    StoredBlock,
    StoredTensor,
    boxes_of,
    common,
    data_path,
    read_tensors,
    write_index,
)
from dynapipe_hpc.training.collectives import Collectives
from dynapipe_hpc.training.counters import Counters
from dynapipe_hpc.training.flat_parameters import FlatState, FlatView, Segment
from dynapipe_hpc.training.optimizer import Optimizer


@dataclass(frozen=True, slots=True, eq=False)
class StatePart:
    """A block of a tensor of the unsplit model."""

    name: str
    tensor_shape: torch.Size
    offsets: torch.Size  # first index of the block, per dimension
    values: Tensor  # values of the block; a view


def view_parts(view: FlatView, kind: str, segment: Segment) -> Iterator[StatePart]:
    """Parts of a weight's state, of one kind, that a segment of the flat buffer holds."""
    start = max(view.start, segment.start)
    stop = min(view.start + view.shape.numel(), segment.start + len(segment.values))
    if start >= stop:
        return
    rest = segment.values[start - segment.start : stop - segment.start]
    for box in boxes_of(view.shape, start - view.start, stop - view.start):
        n = torch.Size(box.sizes).numel()
        values, rest = rest[:n].view(box.sizes), rest[n:]
        for inner, of_unsplit in placed(box, view.split, view.shape):
            d = view.split.dimension
            block = values.narrow(d, inner.offsets[d] - box.offsets[d], inner.sizes[d])
            offsets = torch.Size(of_unsplit.offsets)
            shape = view.split.whole_shape(view.shape)
            yield StatePart(f"{kind}/{view.name}", shape, offsets, block)


def whole_parts(module: nn.Module, *, frozen_only: bool = False) -> list[StatePart]:
    """All parts of the weights of a module, flat or not, or only of frozen weights."""
    splits = splits_of(module)
    return [
        part
        for name, weight in module.named_parameters()
        if not (frozen_only and weight.requires_grad)
        for part in view_parts(
            FlatView(name, 0, weight.shape, splits.get(name, WHOLE)),
            "weight",
            Segment(0, weight.detach().view(-1)),
        )
    ]


def parts_of(views: Sequence[FlatView], state: FlatState) -> list[StatePart]:
    return [
        part
        for kind, segment in state.items()
        for view in views
        for part in view_parts(view, kind, segment)
    ]


def placed(box: Box, split: Split, shape: Sequence[int]) -> Iterator[tuple[Box, Box]]:
    """Pairs of boxes of equal size: in a shard without its fill, and in the whole weight."""
    d = split.dimension
    width = shape[d] // split.n_blocks
    n_real = width if split.whole_size is None else split.whole_size - split.shard * width
    for block in range(split.n_blocks):
        start = max(box.offsets[d], block * width)
        stop = min(box.offsets[d] + box.sizes[d], block * width + min(width, n_real))
        if start < stop:
            before = block * width * (split.n_shards - 1) + split.shard * width
            size = stop - start
            yield _along(box, d, start, size), _along(box, d, before + start, size)


def _along(box: Box, dimension: int, offset: int, size: int) -> Box:
    offsets, sizes = list(box.offsets), list(box.sizes)
    offsets[dimension], sizes[dimension] = offset, size
    return Box(tuple(offsets), tuple(sizes))


DTYPES: dict[str, torch.dtype] = {name: getattr(torch, name) for name in ITEM_BYTES}


class CheckpointReader:
    """Reader of the numbers of a checkpoint, which must have been verified (`check_part`)."""

    def __init__(self, folder: Path, n_parts: int) -> None:
        self._folder = folder
        self._tensors = read_tensors(folder, n_parts)

    def has(self, name: str) -> bool:
        """Whether the checkpoint holds a tensor, by its kind and name."""
        return name in self._tensors

    def fill(self, parts: Sequence[StatePart], *, converting: bool = False) -> None:
        """Overwrites parts with what all ranks wrote, even if they cut the model differently.

        `converting`: Whether types may differ. Raises `DamagedError`: The checkpoint is of another
        model.
        """
        of_rank: dict[int, list[_Piece]] = {}
        for part in parts:
            held = Box(tuple(part.offsets), tuple(part.values.shape))
            stored = _stored(self._tensors, part, converting=converting)
            for rank, tensor in stored.items():
                for block in tensor.blocks:
                    if box := common(held, block.box):
                        piece = _Piece(part, DTYPES[tensor.dtype], block, box)
                        of_rank.setdefault(rank, []).append(piece)
        for rank, pieces in of_rank.items():
            path = data_path(self._folder, rank)
            size = path.stat().st_size
            data = torch.from_file(str(path), shared=False, size=size, dtype=torch.uint8)
            for piece in pieces:
                piece.copy_from(data)

    def rows(self, name: str, start: int, stop: int) -> Tensor:
        """Rows `start` to `stop` of an unsplit tensor by its name; may raise `DamagedError`."""
        if not self.has(name):
            raise DamagedError(f"{name} is missing in the checkpoint")
        stored = next(iter(self._tensors[name].values()))
        shape = torch.Size(stored.shape)
        values = torch.empty((stop - start, *shape[1:]), dtype=DTYPES[stored.dtype])
        self.fill([StatePart(name, shape, torch.Size([start] + [0] * (len(shape) - 1)), values)])
        return values


class _Piece(NamedTuple):
    """Overlap of a part and a stored block."""

    part: StatePart
    dtype: torch.dtype
    block: StoredBlock
    box: Box

    def copy_from(self, data: Tensor) -> None:
        dtype, shape = self.dtype, torch.Size(self.block.box.sizes)
        n_bytes = shape.numel() * dtype.itemsize
        stored = data[self.block.start : self.block.start + n_bytes].view(dtype).view(shape)
        target = _within(self.part.values, self.part.offsets, self.box)
        target.copy_(_within(stored, self.block.box.offsets, self.box))


def _stored(
    tensors: Mapping[str, Mapping[int, StoredTensor]], part: StatePart, *, converting: bool
) -> Mapping[int, StoredTensor]:
    if part.name not in tensors:
        raise DamagedError(f"{part.name} is missing in the checkpoint")
    by_rank = tensors[part.name]
    first = next(iter(by_rank.values()))
    stored = (DTYPES[first.dtype], first.shape)
    expected = (part.values.dtype, tuple(part.tensor_shape))
    if stored[1] != expected[1] or (stored[0] != expected[0] and not converting):
        raise DamagedError(
            f"the checkpoint holds {part.name} as {stored[0]} of shape {list(stored[1])}, "
            f"not {expected[0]} of shape {list(expected[1])}"
        )
    return by_rank


def _within(values: Tensor, offsets: Sequence[int], box: Box) -> Tensor:
    """View of a box of a tensor; `values` is the block of the tensor that begins at `offsets`."""
    for dimension, (start, size) in enumerate(zip(box.offsets, box.sizes, strict=True)):
        values = values.narrow(dimension, start - offsets[dimension], size)
    return values


def write_parts(folder: Path, rank: int, parts: Iterable[StatePart]) -> str:
    """Writes a rank's numbers, one part after the other, and their index; on any thread."""
    of_data, start = new_checksum(), 0
    tensors: dict[str, Any] = {}
    path = data_path(folder, rank)
    with ThreadPoolExecutor(1, "checksum") as checksums, writing(path), path.open("wb") as file:
        for part in parts:
            data = _bytes_of(part.values)
            summing = checksums.submit(of_data.update, data)
            file.write(data)
            summing.result()
            dtype = str(part.values.dtype).removeprefix("torch.")
            without_blocks = {"dtype": dtype, "shape": list(part.tensor_shape), "blocks": []}
            tensor = tensors.setdefault(part.name, without_blocks)
            tensor["blocks"].append([list(part.offsets), list(part.values.shape), start])
            start += len(data)
        file.flush()
        os.fsync(file.fileno())
    return write_index(folder, rank, tensors, of_data.hexdigest())


def _bytes_of(values: Tensor) -> memoryview:
    return values.contiguous().view(-1).view(torch.uint8).numpy().data


class TrainingState:
    """Training state that a rank contributes to a checkpoint and restores from one.

    Replicas hold the same weights, so each contributes the share that it would have with ZeRO-1,
    even if ZeRO-1 is off. What all shards hold is contributed by the first shard. All ranks
    together contribute every number once.
    """

    def __init__(self, module: nn.Module, optimizer: Optimizer, collectives: Collectives) -> None:
        """Manages the weights of `module` that `optimizer` updates, and their state."""
        self._optimizer = optimizer
        self._module = module
        self._views = optimizer.parameters.views
        self._own_views = [
            view for view in self._views if collectives.shard == 0 or view.split.n_shards > 1
        ]
        n = len(optimizer.parameters.weights) // collectives.n_replicas
        self._share = range(collectives.replica * n, (collectives.replica + 1) * n)
        self._copy: FlatState = {}
        self._parts: list[StatePart] = []

    @property
    def counters(self) -> Counters:
        """Counters of the optimizer, which are equal on all ranks."""
        return self._optimizer.counters

    def snapshot(self) -> list[StatePart]:
        """Copies this rank's contribution to host memory; the next snapshot overwrites this one."""
        contribution = self._contribution()
        if not self._parts:
            self._copy = {k: Segment(s.start, _room(s.values)) for k, s in contribution.items()}
            self._parts = parts_of(self._own_views, self._copy)
        for kind, segment in contribution.items():
            self._copy[kind].values.copy_(segment.values)
        return self._parts

    def to_restore(self) -> list[StatePart]:
        """All parts that this rank holds, to be overwritten."""
        return parts_of(self._views, self._optimizer.state())

    def frozen(self) -> list[StatePart]:
        """All parts of weights that are not trained, which checkpoints leave out."""
        return whole_parts(self._module, frozen_only=True)

    def resume(self, counters: Counters) -> None:
        """Resumes from the new contents of `to_restore`; called by all ranks together."""
        self._optimizer.resume(counters)

    def _contribution(self) -> FlatState:
        flat = self._optimizer.state()
        return {kind: _share_of(segment, self._share) for kind, segment in flat.items()}


def _share_of(segment: Segment, share: range) -> Segment:
    """The part of a segment that is a share; the segment holds all of the share."""
    start, stop = share.start - segment.start, share.stop - segment.start
    return Segment(share.start, segment.values[start:stop])


def _room(values: torch.Tensor) -> torch.Tensor:
    room = torch.empty_like(values, device="cpu")
    # A rank that trains nothing has an empty state, which cannot be registered.
    if values.is_cuda and room.nbytes:
        # Pinned in place: torch's own pinned memory is a power of two, up to twice the size. It is
        # never freed, as every snapshot uses it.
        runtime: Any = torch.cuda.cudart()  # type: ignore[no-untyped-call]
        torch.cuda.check_error(runtime.cudaHostRegister(room.data_ptr(), room.nbytes, 0))
    return room
