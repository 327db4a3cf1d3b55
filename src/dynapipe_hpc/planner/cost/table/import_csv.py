"""Reads layer profiles of the paper's authors, as CSV files, into a cost table."""

import csv
import math
from collections.abc import Callable
from dataclasses import replace
from io import StringIO
from pathlib import Path
from typing import NamedTuple, TypeVar

import numpy as np

from dynapipe_hpc.architecture.model_shape import ModelShape
from dynapipe_hpc.architecture.part import EMBEDDING, HEAD, LAYER
from dynapipe_hpc.architecture.t5 import DECODER, DECODER_SIDE, ENCODER, ENCODER_SIDE
from dynapipe_hpc.data.errors import InputError, quoted
from dynapipe_hpc.data.input_file import read_text
from dynapipe_hpc.planner.cost.stage_parts import STAGE
from dynapipe_hpc.planner.cost.table.profile_table import (
    LayerKey,
    LayerProfile,
    ProfileTable,
    UpdateProfile,
    fingerprint_of,
)

MEGABYTE = 1e6
ELEMENT_BYTES = 2  # measured in float16
STATE_FACTOR = 8  # float16 weights and gradients; float32 weights and two moments
MAX_SIZE = 2**31 - 1
MAX_AMOUNT = 1e12
KINDS = ("encoder", "decoder", "embedding", "postprocess")
SIDE_OF = {ENCODER: ENCODER_SIDE, DECODER: DECODER_SIDE}

T = TypeVar("T")


class Measurement(NamedTuple):
    """One layer at one micro-batch shape; memory that was not measured is NaN."""

    key: LayerKey
    size: tuple[int, int, int]
    forward_ms: float
    backward_ms: float
    stored_bytes: float
    peak_bytes: float


def import_csv(profiles: Path, parameters: Path, shape: ModelShape) -> ProfileTable:
    """Makes a cost table of measured layers.

    Memory is counted as the authors count it, so that plans can be compared with theirs. A stage's
    peak is a measured stack's peak, although the stack had up to three layers, plus what all but
    one of the stage's layers store. Weights and logits of the head, all costs of the embedding but
    its weights, transient memory of backward passes, and the update count as zero.

    `profiles`: Times and memory per layer, micro-batch size and lengths. `parameters`: Megabytes of
    weights per layer. Raises `InputError`: A file cannot be read; names file and line.
    """
    measured = _read(profiles, _measurement)
    sizes = dict(_read(parameters, _weight_bytes))
    is_t5 = any(m.key.kind == "decoder" for m in measured)
    if is_t5 != (DECODER in shape.layer_counts):
        raise InputError(
            f"{profiles}: holds measurements of a {'t5' if is_t5 else 'gpt'}, but model.family is "
            f"'{shape.family}'; name the measurements of the configured model"
        )
    layers: dict[LayerKey, LayerProfile] = {}
    for key in dict.fromkeys(m.key for m in measured):
        points = [m for m in measured if m.key == key]
        if key.kind == "postprocess":
            layers[key._replace(kind=HEAD)] = _without_memory(_profile(points, 0.0))
            continue
        layer = _profile(points, _size_of(key, sizes, parameters))
        layers[key if is_t5 else key._replace(kind=LAYER)] = layer
        if key.kind == "encoder":
            embedding_bytes = _size_of(key._replace(kind="embedding"), sizes, parameters)
            layers[key._replace(kind=EMBEDDING)] = _free(layer, embedding_bytes)
            layers[key._replace(kind=STAGE)] = _free(layer, 0.0)
        if is_t5 and key.kind in SIDE_OF:
            layers[key._replace(kind=SIDE_OF[key.kind])] = _free(layer, 0.0)
    return ProfileTable(
        model=fingerprint_of(shape),
        layers=layers,
        element_bytes=ELEMENT_BYTES,
        state_factor=STATE_FACTOR,
        update=UpdateProfile(),
        link=None,
        provenance={"source": f"{profiles.name}, {parameters.name}"},
    )


def _read(path: Path, parse: Callable[[dict[str, str]], T]) -> list[T]:
    try:
        rows = csv.DictReader(StringIO(read_text(path), newline=""))
        records = [_parse(row, parse, f"{path}:{rows.line_num}") for row in rows]
    except csv.Error as error:
        raise InputError(
            f"{path}: not a CSV file: {error}; name a CSV file of measurements"
        ) from None
    if not records:
        raise InputError(
            f"{path}: holds no measurements; it must have a line of column names and one line "
            "per measurement"
        )
    return records


def _parse(row: dict[str, str], parse: Callable[[dict[str, str]], T], where: str) -> T:
    if None in row or None in row.values():
        raise InputError(f"{where}: has fewer or more cells than there are columns")
    try:
        return parse(row)
    except KeyError as error:
        raise InputError(f"{where}: no column {error}") from None
    except (ValueError, TypeError) as error:
        raise InputError(f"{where}: not a measurement: {error}") from None


def _measurement(row: dict[str, str]) -> Measurement:
    return Measurement(
        key=_key(row),
        size=(
            _size(row, "microbatch_size", least=1),
            _size(row, "input_tokens"),
            _size(row, "target_tokens"),
        ),
        forward_ms=_amount(row, "forward_ms"),
        backward_ms=_amount(row, "backward_ms"),
        stored_bytes=_megabytes_if_measured(row, "stored_activation_mb"),
        peak_bytes=_megabytes_if_measured(row, "peak_activation_mb"),
    )


def _weight_bytes(row: dict[str, str]) -> tuple[LayerKey, float]:
    return _key(row), MEGABYTE * _amount(row, "parameter_mb")


def _size(row: dict[str, str], column: str, least: int = 0) -> int:
    if not least <= (size := int(row[column])) <= MAX_SIZE:
        raise ValueError(f"{column} is {quoted(size)}, not a size of {least} or more")
    return size


def _amount(row: dict[str, str], column: str) -> float:
    if not 0 <= (amount := float(row[column])) <= MAX_AMOUNT:
        raise ValueError(f"{column} is {amount:g}, not a number >= 0")
    return amount


def _megabytes_if_measured(row: dict[str, str], column: str) -> float:
    return MEGABYTE * _amount(row, column) if row[column] else math.nan


def _key(row: dict[str, str]) -> LayerKey:
    if row["layer"] not in KINDS:
        raise ValueError(f"layer is '{row['layer']}', not one of {', '.join(KINDS)}")
    return LayerKey(int(row["tensor_parallel"]), row["recompute"], row["layer"])


def _size_of(key: LayerKey, sizes: dict[LayerKey, float], path: Path) -> float:
    if key not in sizes:
        raise InputError(f"{path}: has no weights of {key}")
    return sizes[key]


def _profile(points: list[Measurement], weight_bytes: float) -> LayerProfile:
    sizes = np.array([point.size for point in points]).T
    used = [size for size in sizes if size.any()]
    axes = tuple(np.unique(size) for size in used)
    at = [np.searchsorted(axis, size) for axis, size in zip(axes, used, strict=True)]
    grids = np.full((4, *map(len, axes)), np.nan)
    grids[:, *at] = np.array([point[2:] for point in points]).T
    forward_ms, backward_ms, stored, peak = grids
    nothing = np.where(np.isnan(peak), np.nan, 0.0)
    return LayerProfile(weight_bytes, axes, forward_ms, backward_ms, stored, peak - stored, nothing)


def _without_memory(layer: LayerProfile) -> LayerProfile:
    nothing = np.where(np.isnan(layer.forward_ms), np.nan, 0.0)
    return replace(
        layer,
        stored_bytes=nothing,
        forward_transient_bytes=nothing,
        backward_transient_bytes=nothing,
    )


def _free(like: LayerProfile, weight_bytes: float) -> LayerProfile:
    nothing = np.zeros_like(like.forward_ms)
    return LayerProfile(weight_bytes, like.axes, *([nothing] * 5))
