"""Measured costs of single layers: their table, its checksum, and text about it."""

import hashlib
import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import numpy as np

from dynapipe_hpc.architecture.model_shape import ModelShape
from dynapipe_hpc.data.errors import InputError, printable, quoted
from dynapipe_hpc.data.microbatch import Layout
from dynapipe_hpc.plan.cluster import Link
from dynapipe_hpc.planner.cost.cost_model import FloatArray, IntArray
from dynapipe_hpc.planner.cost.interpolate import make_monotone

PADDED = Layout.PADDED.text
QUANTITIES = (
    "forward_ms",
    "backward_ms",
    "stored_bytes",
    "forward_transient_bytes",
    "backward_transient_bytes",
)
HALVES = ("input_ms", "weight_ms")
"""Times of the two passes that a split backward pass consists of."""
PAIR_QUANTITIES = ("pair_ms", "near_pair_ms")
CONFIG_CHECKSUM, SETTINGS = "config_checksum", "settings"
"""Keys for a decoder of `transformers`: the checksum of its config.json, and its text."""
ModelFingerprint = Mapping[str, str | int]


def fingerprint_of(shape: ModelShape) -> ModelFingerprint:
    """Properties of a measured model, which every model that uses the table must share.

    Keys that the [model] table leaves out have the family's value; keys that are false are absent.
    """
    lora = {"lora": str(shape.lora)} if shape.lora else {}
    known = {name: value for name, value in shape.fingerprint.items() if value}
    settings = {SETTINGS: text} if (text := shape.sizes.get(SETTINGS)) else {}
    return {"family": shape.family, **known, **lora, **settings}


def check_model(measured: ModelFingerprint, shape: ModelShape, path: Path) -> None:
    """Refuses a table of another model.

    Raises `InputError`: Names every size that differs, with both values.
    """
    configured = fingerprint_of(shape)
    differing: list[str] = []
    for name in ("family", *shape.fingerprint, "lora"):
        if measured.get(name) == configured.get(name):
            continue
        if name == CONFIG_CHECKSUM and measured["family"] == configured["family"]:
            differing += _differing_settings(measured, configured)
        else:
            values = f"{measured.get(name)} there and {configured.get(name)} in [model]"
            differing.append(f"{name} is {values}")
    if differing:
        raise InputError(
            f"{path}: costs of another model: {', '.join(differing)}; "
            "measure this one with 'dynapipe-hpc profile CONFIG -o TABLE.h5'"
        )


def _differing_settings(measured: ModelFingerprint, configured: ModelFingerprint) -> Iterator[str]:
    """Settings of config.json that differ; tables of older versions have only a checksum."""
    try:
        there, here = (json.loads(str(of.get(SETTINGS, ""))) for of in (measured, configured))
    except ValueError:
        yield f"{SETTINGS} (of config.json) are not those in [model]"
        return
    for key in sorted(there.keys() | here.keys()):
        if there.get(key) != here.get(key):
            yield (
                f"{SETTINGS}: {key} is {quoted(there.get(key))} there and "
                f"{quoted(here.get(key))} in [model]"
            )


class LayerKey(NamedTuple):
    """A measured layer, and how it was run.

    `kind`: layer, embedding, head (with the loss) or stage (further costs of its passes); encoder
    or decoder of a T5. `layout`: How samples lay in rows: padded, or packed; if packed, n rows
    of a length stand for one row of n samples of that length.
    """

    tensor_parallel: int
    recompute: str
    kind: str
    layout: str = PADDED

    def __str__(self) -> str:
        layout = "" if self.layout == PADDED else f",layout={self.layout}"
        way = f"recompute={self.recompute}{layout}"
        return f"tensor_parallel={self.tensor_parallel}/{way}/{self.kind}"


@dataclass(frozen=True, slots=True, eq=False)
class LayerProfile:
    """Measurements of one layer on a grid of micro-batch shapes; see `StageCosts`.

    A point that ran out of memory, or was not measured, is NaN in every grid.

    `axes`: Ascending rows, then tokens per row; target tokens are a T5 decoder's third axis and a
    T5 head's second. `forward_ms`: Time of the forward pass; this and the following are arrays with
    one dimension per axis. `input_ms`: Time of a split backward pass until the gradient of the
    layer's input is there, plus the time by which its forward pass takes longer; None if split
    passes were not measured. `weight_ms`: Time of the weight gradients that such a pass defers;
    None likewise. `pair_ms`: Extra time of a slice's passes per pair of one of its tokens and
    one before the slice, shape (2,): forward and backward; None if not measured.
    Layers of a kind with windows count as 0. `near_pair_ms`: The same for pairs within windows;
    None without windows.
    """

    parameter_bytes: float
    axes: tuple[IntArray, ...]
    forward_ms: FloatArray
    backward_ms: FloatArray
    stored_bytes: FloatArray
    forward_transient_bytes: FloatArray
    backward_transient_bytes: FloatArray
    input_ms: FloatArray | None = None
    weight_ms: FloatArray | None = None
    pair_ms: FloatArray | None = None
    near_pair_ms: FloatArray | None = None

    @property
    def pair_times(self) -> dict[str, FloatArray]:
        """Times per pair that were measured, by name."""
        named = {name: getattr(self, name) for name in PAIR_QUANTITIES}
        return {name: times for name, times in named.items() if times is not None}

    def grid(self, quantity: str) -> FloatArray:
        measured: FloatArray = getattr(self, quantity)
        return measured

    @property
    def grids(self) -> dict[str, FloatArray]:
        names = (*QUANTITIES, *HALVES)
        return {name: grid for name in names if (grid := getattr(self, name)) is not None}


class UpdateProfile(NamedTuple):
    """Measurements of the end of an iteration."""

    reduce_ms_per_byte: float = 0.0  # adding up gradients over replicas, per byte of weights
    optimizer_ms_per_byte: float = 0.0  # the optimizer's step, per byte of weights


@dataclass(frozen=True, slots=True, eq=False)
class ProfileTable:
    """Measurements of a machine, per kind of layer."""

    model: ModelFingerprint
    layers: Mapping[LayerKey, LayerProfile]
    element_bytes: int
    state_factor: float  # bytes of weights, gradients and optimizer state per byte of weights
    update: UpdateProfile
    link: Link | None  # connection between neighbouring ranks; None if it was not measured
    provenance: Mapping[str, str]


def checksum_of(table: ProfileTable) -> str:
    """BLAKE2b checksum, 8 bytes long, of a table's content, whatever its order."""
    digest = hashlib.blake2b(digest_size=8)
    facts = {
        "model": dict(table.model),
        "element_bytes": int(table.element_bytes),
        "state_factor": float(table.state_factor),
        "update": [float(value) for value in table.update],
        "link": table.link and table.link.model_dump(),
        "provenance": dict(table.provenance),
    }
    digest.update(_text(facts))
    for key, layer in sorted(table.layers.items()):
        names = {"parameter_bytes": float(layer.parameter_bytes), "grids": [*layer.grids]}
        place = key._asdict()
        if key.layout == PADDED:
            del place["layout"]  # so that tables keep the checksums that they have
        digest.update(_text({**place, **names}))
        for axis in layer.axes:
            digest.update(np.ascontiguousarray(axis, "<i8").data)
        for grid in layer.grids.values():
            digest.update(np.ascontiguousarray(grid, "<f8").data)
        for times in layer.pair_times.values():
            digest.update(np.ascontiguousarray(times, "<f8").data)
    return digest.hexdigest()


def _text(facts: dict[str, object]) -> bytes:
    return json.dumps(facts, sort_keys=True, default=str).encode()


_SHOWN = (
    ("source", "created"),
    ("ranks", "threads", "device", "processor", "dtype", "zero_stage", "host"),
    ("attention", "torch", "dynapipe-hpc"),
)


def describe_table(table: ProfileTable, path: Path) -> str:
    """Description of a table: model, machine, range, and how much noise made costs decrease."""
    model = ", ".join(f"{name} {value}" for name, value in table.model.items() if name != SETTINGS)
    layers = [_describe(key, layer) for key, layer in table.layers.items()]
    return "\n".join([f"{path}: costs of {model}", *_circumstances(table), *layers, *_rest(table)])


def _circumstances(table: ProfileTable) -> Iterator[str]:
    facts = table.provenance
    lines = ([f"{name} {facts[name]}" for name in names if name in facts] for names in _SHOWN)
    yield from (f"  {printable(', '.join(line))}" for line in lines if line)


def _describe(key: LayerKey, layer: LayerProfile) -> str:
    points = int(np.isfinite(layer.forward_ms).sum())
    repaired = [make_monotone(layer.grid(quantity)).n_changed for quantity in QUANTITIES]
    ranges = " x ".join(f"{axis[0]}..{axis[-1]}" for axis in layer.axes)
    work_ms = layer.forward_ms + layer.backward_ms
    halves = "" if layer.input_ms is None else ", backward passes in halves, too"
    return (
        f"  {key}: {points} points of {ranges}, {np.nanmin(work_ms):.3g} to "
        f"{np.nanmax(work_ms):.3g} ms{halves}; "
        f"{sum(repaired) / len(QUANTITIES) / points:.1%} repaired"
    )


def _rest(table: ProfileTable) -> list[str]:
    update = table.update
    lines = [
        f"  update: {1e6 * update.optimizer_ms_per_byte:.3g} ms per MB of weights, "
        f"{1e6 * update.reduce_ms_per_byte:.3g} ms to add it up over replicas"
    ]
    if not any(layer.input_ms is not None for layer in table.layers.values()):
        lines.append("  halves of backward passes: not measured, so estimated where plans split")
    if table.link is not None:
        lines.append(
            f"  link: {table.link.latency_ms:.3g} ms + {table.link.bytes_per_ms / 1e6:.3g} GB/s"
        )
    return lines
