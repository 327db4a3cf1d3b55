"""The HDF5 file that holds a cost table; docs/formats.md describes it."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import h5py
import numpy as np

from dynapipe_hpc.data.errors import InputError
from dynapipe_hpc.data.replacing import replacing
from dynapipe_hpc.plan.cluster import Link
from dynapipe_hpc.planner.cost.profile_table import (
    QUANTITIES,
    LayerKey,
    LayerProfile,
    ProfileTable,
    UpdateProfile,
)

FORMAT = "dynapipe-hpc cost table"
SCHEMA_VERSION = 1
STACK_PEAK = "stack_peak_bytes"  # optional
AXES = ("rows", "row_tokens", "target_tokens")


def write_table(table: ProfileTable, path: Path) -> None:
    """Writes a table, whole or not at all.

    Raises:
        InputError: There is no folder to write it into.
    """
    with replacing(path) as beside, h5py.File(beside, "w") as file:
        file.attrs.update(format=FORMAT, schema_version=SCHEMA_VERSION)
        file.attrs.update(element_bytes=table.element_bytes, state_factor=table.state_factor)
        file.create_group("model").attrs.update(table.model)
        file.create_group("provenance").attrs.update(table.provenance)
        file.create_group("update").attrs.update(table.update._asdict())
        if table.link is not None:
            file.create_group("link").attrs.update(table.link.model_dump())
        for key, layer in table.layers.items():
            _write_layer(file.create_group(f"layers/{key}"), key, layer)


def _write_layer(group: h5py.Group, key: LayerKey, layer: LayerProfile) -> None:
    group.attrs.update(key._asdict(), parameter_bytes=layer.parameter_bytes)
    for name, axis in zip(AXES, layer.axes, strict=False):
        group[name] = axis
    for quantity in QUANTITIES:
        group[quantity] = layer.grid(quantity)
    if layer.stack_peak_bytes is not None:
        group[STACK_PEAK] = layer.stack_peak_bytes


def read_table(path: Path) -> ProfileTable:
    """Reads a table.

    Raises:
        InputError: The file is missing, or is not a table of this version.
    """
    try:
        file = h5py.File(path, "r")
    except OSError as error:
        raise InputError(
            f"{path}: cannot be read as a cost table ({error}); "
            "'dynapipe-hpc profile CONFIG -o TABLE.h5' makes one"
        ) from None
    with file:
        _check_format(file, path)
        update = _plain(file["update"])
        return ProfileTable(
            model=_plain(file["model"]),
            layers=dict(_read_layers(file["layers"])),
            element_bytes=int(file.attrs["element_bytes"]),
            state_factor=float(file.attrs["state_factor"]),
            update=UpdateProfile(*(update[name] for name in UpdateProfile._fields)),
            link=Link(**_plain(file["link"])) if "link" in file else None,
            provenance=_plain(file["provenance"]),
        )


def _check_format(file: h5py.File, path: Path) -> None:
    found = (file.attrs.get("format"), file.attrs.get("schema_version"))
    if found != (FORMAT, SCHEMA_VERSION):
        raise InputError(
            f"{path}: is '{found[0]}' version {found[1]}, not '{FORMAT}' version "
            f"{SCHEMA_VERSION}; 'dynapipe-hpc profile CONFIG -o TABLE.h5' makes one"
        )


def _read_layers(layers: h5py.Group) -> Iterator[tuple[LayerKey, LayerProfile]]:
    for mode in (mode for degree in layers.values() for mode in degree.values()):
        for group in mode.values():
            attributes = _plain(group)
            key = LayerKey(*(attributes[name] for name in LayerKey._fields))
            axes = tuple(group[name][:] for name in AXES if name in group)
            grids = {name: group[name][:] for name in (*QUANTITIES, STACK_PEAK) if name in group}
            yield key, LayerProfile(float(attributes["parameter_bytes"]), axes, **grids)


def _plain(group: h5py.Group) -> dict[str, Any]:
    """Attributes as Python's own types."""
    return {
        name: value.item() if isinstance(value, np.generic) else value
        for name, value in group.attrs.items()
    }
