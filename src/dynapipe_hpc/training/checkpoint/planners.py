"""Tells torch.distributed.checkpoint which parts of which tensors a rank writes and reads."""

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
    """Plans to write some parts, and nothing that other ranks would have to know."""

    def __init__(self, parts: Sequence[Part]) -> None:
        """Writes `parts`."""
        self._parts = {_index(part): part for part in parts}

    def set_up_planner(
        self,
        state_dict: dict[str, Any],
        storage_meta: StorageMeta | None = None,
        is_coordinator: bool = False,
    ) -> None:
        """Nothing to do."""

    def create_local_plan(self) -> SavePlan:
        """All parts."""
        return SavePlan([_write_item(part) for part in self._parts.values()])

    def create_global_plan(self, all_plans: list[SavePlan]) -> tuple[list[SavePlan], Metadata]:
        """The same, and what this rank knows of the tensors."""
        tensors: dict[str, TensorStorageMetadata] = {}
        for part in self._parts.values():
            of_tensor = TensorStorageMetadata(_properties(part), part.whole_shape, [])
            tensors.setdefault(part.name, of_tensor).chunks.append(_chunk(part))
        return all_plans, Metadata(dict(tensors))

    def finish_plan(self, new_plan: SavePlan) -> SavePlan:
        """The same."""
        return new_plan

    def resolve_data(self, write_item: WriteItem) -> Tensor:
        """A part's values."""
        return self._parts[write_item.index].values


class PartLoadPlanner(LoadPlanner):
    """Plans to fill some parts from wherever what they overlap was written."""

    def __init__(self, parts: Sequence[Part]) -> None:
        """Overwrites `parts`."""
        self._parts = {_index(part): part for part in parts}
        self._metadata = Metadata({})

    def set_up_planner(
        self,
        state_dict: dict[str, Any],  # noqa: ARG002
        metadata: Metadata | None = None,
        is_coordinator: bool = False,  # noqa: ARG002
    ) -> None:
        """Notes what there is."""
        self._metadata = metadata or self._metadata

    def create_local_plan(self) -> LoadPlan:
        """What to read of which part."""
        by_name: dict[str, list[Part]] = {}
        for part in self._parts.values():
            by_name.setdefault(part.name, []).append(part)
        return LoadPlan([i for name, parts in by_name.items() for i in self._items(name, parts)])

    def create_global_plan(self, global_plan: list[LoadPlan]) -> list[LoadPlan]:
        """The same."""
        return global_plan

    def finish_plan(self, central_plan: LoadPlan) -> LoadPlan:
        """The same."""
        return central_plan

    def load_bytes(self, read_item: ReadItem, value: io.BytesIO) -> None:
        """Never: there are tensors only."""
        raise TypeError(f"{read_item.dest_index.fqn} is no tensor, but {value!r}")

    def resolve_tensor(self, read_item: ReadItem) -> Tensor:
        """The place of some numbers."""
        part = self._parts[read_item.dest_index]
        return narrowed(part.values, read_item.dest_offsets, read_item.lengths)

    def commit_tensor(self, read_item: ReadItem, tensor: Tensor) -> None:
        """Nothing to do: the place was written to."""

    def _items(self, name: str, parts: Sequence[Part]) -> list[ReadItem]:
        stored = self._metadata.state_dict_metadata.get(name)
        expected = (parts[0].whole_shape, parts[0].values.dtype)
        if not isinstance(stored, TensorStorageMetadata):
            raise DamagedError(f"the checkpoint holds no {name}")
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
    data = TensorWriteData(_chunk(part), _properties(part), part.whole_shape)
    return WriteItem(_index(part), WriteItemType.SHARD, tensor_data=data)
