"""The HDF5 file that holds a cost table; docs/formats.md describes it."""

from collections.abc import Iterator
from io import BytesIO
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import numpy.typing as npt
from pydantic import ValidationError

from dynapipe_hpc.data.atomic_write import atomic_write
from dynapipe_hpc.data.errors import InputError, quoted
from dynapipe_hpc.data.input_file import why_unreadable
from dynapipe_hpc.data.stored_file import (
    attributes_of,
    holds,
    open_stored,
    stored_array,
    stored_group,
    stored_groups,
)
from dynapipe_hpc.plan.cluster import Link
from dynapipe_hpc.planner.cost.table.profile_table import (
    HALVES,
    PAIR_QUANTITIES,
    QUANTITIES,
    LayerKey,
    LayerProfile,
    ProfileTable,
    UpdateProfile,
    checksum_of,
)

LARGEST = 1e18
AXES = ("rows", "row_tokens", "target_tokens")


def check_table(table: ProfileTable) -> None:
    """Refuses numbers that cannot have been measured: kernels and plans rely on this check.

    Raises `InputError`: Names the layer, the quantity and the value.
    """
    for name, value, least in _numbers(table):
        if not isinstance(value, int | float) or not least <= value <= LARGEST:
            raise InputError(f"{name} is {quoted(value)}, not a number >= {least:g}")
    for key, layer in table.layers.items():
        _check_axes(key, layer)
        for quantity in layer.grids:
            _check_grid(key, layer, quantity)
        for name, times in layer.pair_times.items():
            if times.shape != (2,) or not np.all((times >= 0) & (times <= LARGEST)):
                raise InputError(f"{key}: {name} is {quoted(times)}, not two numbers >= 0")


def _numbers(table: ProfileTable) -> Iterator[tuple[str, object, float]]:
    yield "element_bytes", table.element_bytes, 1
    yield "state_factor", table.state_factor, 1
    for name, value in table.update._asdict().items():
        yield name, value, 0
    for key, layer in table.layers.items():
        yield f"{key}: tensor_parallel", key.tensor_parallel, 1
        yield f"{key}: parameter_bytes", layer.parameter_bytes, 0


def _check_axes(key: LayerKey, layer: LayerProfile) -> None:
    for name, axis in zip(AXES, layer.axes, strict=False):
        if axis.ndim != 1 or not axis.size or axis[0] < 1 or np.any(axis[1:] <= axis[:-1]):
            raise InputError(f"{key}: {name} are not ascending from 1 or more: {quoted(axis)}")
        if axis[-1] > 2**31 - 1:
            raise InputError(f"{key}: {name} reach {axis[-1]}, more than {2**31 - 1}")


def _check_grid(key: LayerKey, layer: LayerProfile, quantity: str) -> None:
    grid = layer.grid(quantity)
    if grid.shape != (shape := tuple(map(len, layer.axes))):
        raise InputError(f"{key}: {quantity} has shape {grid.shape}, but the axes need {shape}")
    wrong = ~np.isnan(grid) & ~((grid >= 0) & (grid <= LARGEST))
    if wrong.any():
        place = _first(wrong)
        raise InputError(f"{key}: {quantity}{list(place)} is {grid[place]:g}, not a number >= 0")
    missing = np.isnan(grid) & ~np.isnan(layer.forward_ms)
    if missing.any() and quantity in ("backward_ms", *HALVES):
        raise InputError(f"{key}: has forward_ms but no {quantity} at {list(_first(missing))}")
    if np.isnan(grid).all() and quantity == "forward_ms":
        raise InputError(f"{key}: holds no measurement of the layer")


def _first(flags: npt.NDArray[np.bool_]) -> tuple[int, ...]:
    return tuple(int(i) for i in np.argwhere(flags)[0])


FORMAT = "dynapipe-hpc cost table"
SCHEMA_VERSION = 5
_AGAIN = "'dynapipe-hpc profile CONFIG -o TABLE.h5' makes one"


class NotATableError(InputError):
    """A file of another kind or version."""


def write_table(table: ProfileTable, path: Path) -> None:
    """Writes a table, completely or not at all.

    Raises `InputError`: There is no folder to write it into. Raises `RunError`: The file system
    refuses, as when the disk is full.
    """
    # In memory first: HDF5 does not survive a disk that is full when it closes the file.
    image = BytesIO()
    with h5py.File(image, "w") as file:
        _put(file, format=FORMAT, schema_version=SCHEMA_VERSION, checksum=checksum_of(table))
        _put(file, element_bytes=table.element_bytes, state_factor=table.state_factor)
        _put(file.create_group("model"), **table.model)
        _put(file.create_group("provenance"), **table.provenance)
        _put(file.create_group("update"), **table.update._asdict())
        if table.link is not None:
            _put(file.create_group("link"), **table.link.model_dump())
        file.create_group("layers")
        for key, layer in table.layers.items():
            _write_layer(file.create_group(f"layers/{key}"), key, layer)
    with atomic_write(path) as temporary:
        temporary.write_bytes(image.getvalue())


def _write_layer(group: h5py.Group, key: LayerKey, layer: LayerProfile) -> None:
    _put(group, **key._asdict(), parameter_bytes=layer.parameter_bytes)
    for name, axis in zip(AXES, layer.axes, strict=False):
        group[name] = axis
    for quantity, grid in layer.grids.items():
        group[quantity] = grid
    for name, times in layer.pair_times.items():
        group[name] = times


def _put(group: h5py.Group, **attributes: Any) -> None:
    """Writes attributes; texts have a fixed length: HDF5 allocates others before it checks them."""
    for name, value in attributes.items():
        text = value.encode() if isinstance(value, str) else None
        group.attrs[name] = value if text is None else np.array(text, f"S{max(1, len(text))}")


def read_table(path: Path) -> ProfileTable:
    """Reads a table.

    Raises `InputError`: The file is missing, is not a table of this version, or is damaged.
    """
    with _open(path) as file:
        try:
            _check_format(file, path)
            table = _read(file)
            check_table(table)
            _check_checksum(file, table)
        except NotATableError:
            raise
        except KeyError as error:
            raise InputError(f"{path}: damaged cost table: no {error}; {_AGAIN}") from None
        except ValidationError as error:
            reason = "; ".join(f"link: {d['loc'][0]}: {d['msg']}" for d in error.errors())
            raise InputError(f"{path}: damaged cost table: {reason}; {_AGAIN}") from None
        except (ValueError, TypeError, AttributeError, OSError, RuntimeError) as error:
            raise InputError(f"{path}: damaged cost table: {error}; {_AGAIN}") from None
    return table


def _open(path: Path) -> h5py.File:
    if reason := why_unreadable(path):
        raise InputError(f"{path}: not a cost table: {reason}; {_AGAIN}")
    try:
        return open_stored(path)
    except OSError:
        raise InputError(f"{path}: not a cost table: not a complete HDF5 file; {_AGAIN}") from None


def _check_format(file: h5py.File, path: Path) -> None:
    attributes = attributes_of(file)
    name: Any = attributes.get("format")
    version: Any = attributes.get("schema_version")
    if name is None:
        raise NotATableError(f"{path}: an HDF5 file, but not a cost table; {_AGAIN}")
    if name != FORMAT:
        raise NotATableError(f"{path}: is a {name}, not a cost table; {_AGAIN}")
    if np.ndim(version) or version != SCHEMA_VERSION:
        raise NotATableError(
            f"{path}: is a cost table of version {version}, but this dynapipe-hpc reads "
            f"{SCHEMA_VERSION}; {_AGAIN}"
        )


def _check_checksum(file: h5py.File, table: ProfileTable) -> None:
    written, actual = attributes_of(file)["checksum"], checksum_of(table)
    if written != actual:
        raise InputError(
            f"its numbers are not those that were written: their checksum is {actual}, not "
            f"{quoted(written)}; if they were changed on purpose, correct the attribute 'checksum'"
        )


def _read(file: h5py.File) -> ProfileTable:
    attributes, update = attributes_of(file), attributes_of(stored_group(file, "update"))
    return ProfileTable(
        model=attributes_of(stored_group(file, "model")),
        layers=dict(_read_layers(stored_group(file, "layers"))),
        element_bytes=int(attributes["element_bytes"]),
        state_factor=float(attributes["state_factor"]),
        update=UpdateProfile(*(update[name] for name in UpdateProfile._fields)),
        link=Link(**attributes_of(stored_group(file, "link"))) if holds(file, "link") else None,
        provenance=attributes_of(stored_group(file, "provenance")),
    )


def _read_layers(layers: h5py.Group) -> Iterator[tuple[LayerKey, LayerProfile]]:
    for mode in (mode for degree in stored_groups(layers) for mode in stored_groups(degree)):
        for group in stored_groups(mode):
            attributes = attributes_of(group)
            key = LayerKey(*(attributes[name] for name in LayerKey._fields))
            axes = tuple(_array(group, n, "iu") for n in AXES if holds(group, n) or n in AXES[:2])
            names = [*QUANTITIES, *(name for name in HALVES if holds(group, name))]
            grids = {name: _array(group, name, "f") for name in names}
            pairs = {
                name: _array(group, name, "f") for name in PAIR_QUANTITIES if holds(group, name)
            }
            parameter_bytes = float(attributes["parameter_bytes"])
            yield key, LayerProfile(parameter_bytes, axes, **grids, **pairs)


def _array(group: h5py.Group, name: str, kinds: str) -> Any:
    actual = stored_array(group, name)
    if actual.dtype.kind not in kinds or not actual.ndim:
        raise InputError(f"{group.name}/{name} has shape {actual.shape} and type {actual.dtype}")
    return actual[:]
