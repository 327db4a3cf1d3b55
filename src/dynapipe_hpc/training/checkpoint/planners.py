"""Planners that tell torch.distributed.checkpoint which parts a rank writes and reads."""

import io
from collections.abc import Sequence
from typing import Any

from torch import Tensor
from torch.distributed.checkpoint.metadata import (
    ChunkStorageMetadata,
    Metadata,
    MetadataIndex,
    StorageMeta,
    TensorProperties,
    TensorStorageMetadata,
)
from torch.distributed.checkpoint.planner import (
    LoadPlan,
    LoadPlanner,
    ReadItem,
    SavePlan,
    SavePlanner,
    TensorWriteData,
    WriteItem,
    WriteItemType,
)
from torch.distributed.checkpoint.planner_helpers import create_read_items_for_chunk_list

from dynapipe_hpc.training.checkpoint.files import DamagedError
from dynapipe_hpc.training.checkpoint.part_reader import narrowed
from dynapipe_hpc.training.checkpoint.parts import Part


class PartSavePlanner(SavePlanner):
    """Planner that writes some parts, without coordination with other ranks."""

    def __init__(self, parts: Sequence[Part]) -> None:
        """Plans to write `parts`."""
        self._parts = {_index(part): part for part in parts}

    def set_up_planner(
        self,
        state_dict: dict[str, Any],
        storage_meta: StorageMeta | None = None,
        is_coordinator: bool = False,
    ) -> None:
        """Does nothing."""

    def create_local_plan(self) -> SavePlan:
        """Plan of all parts."""
        return SavePlan([_write_item(part) for part in self._parts.values()])

    def create_global_plan(self, all_plans: list[SavePlan]) -> tuple[list[SavePlan], Metadata]:
        """The given plans, and the metadata of this rank's tensors."""
        tensors: dict[str, TensorStorageMetadata] = {}
        for part in self._parts.values():
            of_tensor = TensorStorageMetadata(_properties(part), part.tensor_shape, [])
            tensors.setdefault(part.name, of_tensor).chunks.append(_chunk(part))
        return all_plans, Metadata(dict(tensors))

    def finish_plan(self, new_plan: SavePlan) -> SavePlan:
        """Returns its argument."""
        return new_plan

    def resolve_data(self, write_item: WriteItem) -> Tensor:
        """Values of a part."""
        return self._parts[write_item.index].values


class PartLoadPlanner(LoadPlanner):
    """Planner that fills parts from all stored blocks that overlap them."""

    def __init__(self, parts: Sequence[Part]) -> None:
        """Plans to overwrite `parts`."""
        self._parts = {_index(part): part for part in parts}
        self._metadata = Metadata({})

    def set_up_planner(
        self,
        state_dict: dict[str, Any],  # noqa: ARG002
        metadata: Metadata | None = None,
        is_coordinator: bool = False,  # noqa: ARG002
    ) -> None:
        """Keeps the metadata of the stored tensors."""
        self._metadata = metadata or self._metadata

    def create_local_plan(self) -> LoadPlan:
        """Plan of what to read into which part."""
        by_name: dict[str, list[Part]] = {}
        for part in self._parts.values():
            by_name.setdefault(part.name, []).append(part)
        return LoadPlan([i for name, parts in by_name.items() for i in self._items(name, parts)])

    def create_global_plan(self, global_plan: list[LoadPlan]) -> list[LoadPlan]:
        """Returns its argument."""
        return global_plan

    def finish_plan(self, central_plan: LoadPlan) -> LoadPlan:
        """Returns its argument."""
        return central_plan

    def load_bytes(self, read_item: ReadItem, value: io.BytesIO) -> None:
        """Never called: a checkpoint holds tensors only."""
        raise TypeError(f"{read_item.dest_index.fqn} is {value!r}, not a tensor")

    def resolve_tensor(self, read_item: ReadItem) -> Tensor:
        """The view into which to read."""
        part = self._parts[read_item.dest_index]
        return narrowed(part.values, read_item.dest_offsets, read_item.lengths)

    def commit_tensor(self, read_item: ReadItem, tensor: Tensor) -> None:
        """Does nothing: the view was written to."""

    def _items(self, name: str, parts: Sequence[Part]) -> list[ReadItem]:
        stored = self._metadata.state_dict_metadata.get(name)
        expected = (parts[0].tensor_shape, parts[0].values.dtype)
        if not isinstance(stored, TensorStorageMetadata):
            raise DamagedError(f"{name} is missing in the checkpoint")
        if (stored.size, stored.properties.dtype) != expected:
            raise DamagedError(
                f"the checkpoint holds {name} as {stored.properties.dtype} of shape "
                f"{list(stored.size)}, not {expected[1]} of shape {list(expected[0])}"
            )
        return create_read_items_for_chunk_list(name, stored, [_chunk(part) for part in parts])


def _index(part: Part) -> MetadataIndex:
    return MetadataIndex(part.name, part.offsets)


def _chunk(part: Part) -> ChunkStorageMetadata:
    return ChunkStorageMetadata(part.offsets, part.values.shape)


def _properties(part: Part) -> TensorProperties:
    return TensorProperties(part.values.dtype)


def _write_item(part: Part) -> WriteItem:
    data = TensorWriteData(_chunk(part), _properties(part), part.tensor_shape)
    return WriteItem(_index(part), WriteItemType.SHARD, tensor_data=data)
